"""A model that `lab lstm train --data sine` has saved, in torch.nn.LSTM: every tensor by its name, and what it
forecasts.

    lab lstm train --data sine --out sine.safetensors
    python3 benches/peers/lstm_loads.py sine.safetensors

Fails where a tensor is missing or has another shape, or where the forecast of the next point of the sine is
off by more than a tenth of what the last point (persistence) is off by.
"""

import json
import math
import sys

import torch
from safetensors import safe_open

with safe_open(sys.argv[1], "pt") as file:
    saved = {name: file.get_tensor(name) for name in file.keys()}
    of = json.loads(file.metadata()["lstm_fused"])
network, window = of["model"]["network"], of["config"]["window"]
mean, deviation = map(float, of["notes"]["scale"].split())
lstm = torch.nn.LSTM(
    network["inputs"], network["hidden"], network["layers"], bidirectional=network["bidirectional"]
)
lstm.load_state_dict({name: saved[name] for name in lstm.state_dict()})  # strict

# As the demo has them.
points = torch.tensor([math.sin(n / 10) for n in range(1000)])
windows = ((points - mean) / deviation).unfold(0, window + 1, 1)
x, target = windows[:, :window].T.unsqueeze(-1), windows[:, window]
with torch.no_grad():
    forecast = lstm(x)[0][-1] @ saved["head_weight"].T + saved["head_bias"]
rms = lambda error: error.square().mean().sqrt().item()
own, persistence = rms(forecast[:, 0] - target), rms(windows[:, window - 1] - target)
print(f"torch.nn.LSTM with these weights: RMSE {own:.4f}, persistence {persistence:.4f}")
sys.exit(own > persistence / 10)
