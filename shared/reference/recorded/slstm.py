"""Outputs and gradients of the published cell, for the reference to be held against.

    pip install numpy safetensors && python3 slstm.py OUT.safetensors

The equations are those of FlashRNN's plain PyTorch cell (NX-AI/flashrnn at d73fb52,
`flashrnn/vanilla/slstm.py`), written in numpy: the maximum over all rows at once where no row has a state,
and the normaliser at least 1. Gradients are taken with complex numbers: the imaginary part of a loss whose
one input has an imaginary step of 1e-30, divided by the step, is its derivative without a cancellation.
Branches compare real parts. The loss holds no c, n: those of the published cell depend on m.
"""

import sys

import numpy as np
from safetensors.numpy import save_file

# T, B, NH, DH; the spread of the gates; whether a state goes in.
CASES = {"none": ((5, 2, 2, 3), 1.0, False), "state": ((4, 1, 3, 2), 2.0, True), "wide": ((6, 2, 1, 3), 8.0, True)}
STEP = 1e-30


def larger(a, b):
    return np.where(a.real >= b.real, a, b)


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


def log_sigmoid(v):
    negative = v.real < 0
    return np.where(negative, v, 0) - np.log(1 + np.exp(np.where(negative, v, -v)))


def forward(wx, r, b, h, c, n, m):
    ys = []
    for x in wx:
        i, f, z, o = np.moveaxis(x + np.einsum("gnjk,bnk->bgnj", r, h) + b, 1, 0)
        carried = log_sigmoid(f) + m
        m = i if np.all(n == 0) else larger(i, carried)
        scaled_i, scaled_f = np.exp(i - m), np.exp(carried - m)
        c = scaled_f * c + scaled_i * np.tanh(z)
        n = larger(scaled_f * n + scaled_i, np.ones_like(n))
        h = sigmoid(o) * c / n
        ys.append(h)
    return np.stack(ys), h, c, n, m


def main(path):
    random = np.random.default_rng(0)
    tensors = {}
    for name, ((t, b, nh, dh), spread, has_state) in CASES.items():
        normal = random.standard_normal
        state = normal((4, b, nh, dh)) * has_state
        state[2] = (1 + abs(state[2])) * has_state
        inputs = dict(wx=spread * normal((t, b, 4, nh, dh)), r=normal((4, nh, dh, dh)), b=normal((4, nh, dh)))
        inputs |= dict(zip(["h0", "c0", "n0", "m0"], state))
        dy, dhn = normal((t, b, nh, dh)), normal((b, nh, dh))
        plain = [v.astype(complex) for v in inputs.values()]
        outputs = dict(zip(["y", "hn", "cn", "nn", "mn"], (v.real for v in forward(*plain))))
        case = inputs | outputs | dict(dy=dy, dhn=dhn)
        for which, key in enumerate(["wx", "r", "b", "h0"]):
            gradient = np.zeros(inputs[key].size)
            for at in range(gradient.size):
                moved = [v.copy() for v in plain]
                moved[which].flat[at] += 1j * STEP
                y, hn, *_ = forward(*moved)
                gradient[at] = np.sum(y.imag * dy) / STEP + np.sum(hn.imag * dhn) / STEP
            case["d" + key] = gradient.reshape(inputs[key].shape)
        tensors |= {f"{name}.{key}": np.ascontiguousarray(v) for key, v in case.items()}
    save_file(tensors, path, metadata={"flashrnn": "d73fb52", "numpy": np.__version__})


main(sys.argv[1])
