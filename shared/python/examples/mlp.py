"""Which letter follows which: a model of one letter, trained on the text of this file."""

import pathlib

import torch

import vlstm

device = "cuda" if torch.cuda.is_available() else "cpu"
text = pathlib.Path(__file__).read_text()
letters = sorted(set(text))
ids = torch.tensor([letters.index(letter) for letter in text], device=device)

torch.manual_seed(0)
model = vlstm.MLP(len(letters), embedding=16, hidden=32, device=device)
for call in range(10):
    places = torch.randint(len(ids) - 1, (20, 64), device=device)  # 20 steps of 64 pairs
    losses = model.training_step(ids[places], ids[places + 1], lr=0.5)
    first = losses[0].item()
    print(f"step {20 * call}: {first:.3f}")
print("after v comes", letters[model(ids[text.index("v")]).argmax()])
