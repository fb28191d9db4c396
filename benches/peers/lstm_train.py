"""`lab lstm train` on a text, by PyTorch: one LSTM layer on characters and a linear layer, in bf16.

    python3 benches/peers/lstm_train.py TEXT --hidden 512 --batch 64 --window 128

The same windows, loss and optimizer: cross-entropy at each position, Adam, gradients clipped to a norm of 1, parameters
in f32 and products under autocast. Prints ms a step, launched one by one and with the whole step in a CUDA graph, and
the mean loss of the last epoch in the graph.
"""

import argparse
import pathlib

import torch
import torch.nn.functional as F

LR = 0.005


class Training:
    def __init__(self, text, hidden, batch, window):
        letters = sorted(set(text))
        ids = torch.tensor([letters.index(c) for c in text]).cuda()
        # A window's targets are its characters, one further on.
        starts = torch.arange(0, len(text) - window, window).cuda()
        windows = ids[starts[:, None] + torch.arange(window + 1).cuda()]
        self.steps = len(windows) // batch
        self.windows, self.batch = windows, batch
        self.rows = torch.zeros(batch, dtype=torch.long, device="cuda")
        self.lstm = torch.nn.LSTM(len(letters), hidden).cuda()
        self.head = torch.nn.Linear(hidden, len(letters)).cuda()
        self.of = [*self.lstm.parameters(), *self.head.parameters()]
        self.adam = torch.optim.Adam(self.of, lr=LR, fused=True, capturable=True)
        self.total = torch.zeros((), device="cuda")

    def step(self):
        self.adam.zero_grad(set_to_none=True)
        own = self.windows[self.rows].t()  # [window + 1, batch]
        with torch.autocast("cuda", torch.bfloat16):
            x = F.one_hot(own[:-1], self.lstm.input_size).to(torch.bfloat16)
            z = self.head(self.lstm(x)[0])
        loss = F.cross_entropy(z.float().flatten(0, 1), own[1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.of, 1.0)
        self.adam.step()
        self.total += loss.detach()

    def epoch(self, step):
        """ms a step, and the mean loss."""
        order = torch.randperm(len(self.windows), device="cuda")
        self.total.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for n in range(self.steps):
            self.rows.copy_(order[n * self.batch : (n + 1) * self.batch])
            step()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / self.steps, self.total.item() / self.steps

    def in_graph(self):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("text", type=pathlib.Path)
    for name, of in [("hidden", 512), ("batch", 64), ("window", 128), ("epochs", 20)]:
        asked.add_argument(f"--{name}", type=int, default=of)
    of = asked.parse_args()
    torch.manual_seed(0)
    training = Training(of.text.read_text(), of.hidden, of.batch, of.window)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what a capture needs to be there before
        launched = min(training.epoch(training.step)[0] for _ in range(3))
    torch.cuda.current_stream().wait_stream(side)
    replay = training.in_graph()
    epochs = [training.epoch(replay) for _ in range(of.epochs)]
    print(f"PyTorch {torch.__version__}: {training.steps} steps an epoch, {launched:.3f} ms a step,")
    print(f"in a graph {min(epochs)[0]:.3f} ms a step; loss {epochs[-1][1]:.3f} after {of.epochs} epochs and 3")


if __name__ == "__main__":
    main()
