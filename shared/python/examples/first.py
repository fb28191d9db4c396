import torch, vlstm

q, k, v = (torch.randn(2, 4, 128, 64, requires_grad=True) for _ in range(3))  # (B, NH, S, DH)
i, f = torch.randn(2, 4, 128), torch.randn(2, 4, 128) + 3  # pre-activations of the gates: (B, NH, S)
h = vlstm.mlstm(q, k, v, i, f)
h.square().mean().backward()
print(h.shape, q.grad.norm())
