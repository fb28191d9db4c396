"""The mLSTM with a sigmoid input gate (mLSTMsig): the kernels of the mLSTM, whose input gate is an exponential, with its logarithm."""

import torch

from vlstm import _api, _linear


def mlstm_sig(
    q, k, v, i, f, c_initial=None, n_initial=None, m_initial=None, return_last_states=False, eps=1e-6, chunk_size=None,
    autocast_kernel_dtype=None, *, normalizer_grad="exact", version="auto", cu_seqlens=None, dtype_state=torch.float32,
    normalize=True,
):
    """The mLSTM with sigmoid gates over a sequence, normalised by at least 1 or not at all.

    For position t of each head, with s = 1 / sqrt(DHQK):

        C_t = sigmoid(f_t) C_(t-1) + sigmoid(i_t) k_t v_t^T
        n_t = sigmoid(f_t) n_(t-1) + sigmoid(i_t) k_t
        h_t = s C_t^T q_t / (max(|s n_t . q_t|, 1) + eps e^(m_t))

    m_t is the logarithm of the largest weight that a position up to t still has. From a state with m of at most 0, or from none, it
    is at most 0, so that at most eps is added; mlstm_kernels adds eps itself. With `normalize=False` h_t is s C_t^T q_t, and there is
    neither n nor m: that is `linear_attention` with the logarithm of sigmoid(f) for g and sigmoid(i) for w.

    Source: Beck et al. 2025, arXiv 2503.14376.

    Args:
        i: pre-activation of the input gate (B, NH, S), of which the sigmoid is taken.
        c_initial, n_initial, m_initial: the state before the first position, as this function returns it. One that carries no
            factor, such as mlstm_kernels', has m = 0.
        normalizer_grad: `exact` is the gradient of h as it stands; `constant` holds the normaliser constant, as mlstm_kernels does.
        normalize: whether h is divided by a normaliser. Without one these are refused: `n_initial`,
            `m_initial`, and any `dtype_state` but float32 (float64 for q in float64, too). eps, chunk_size and
            normalizer_grad are checked and have no effect.
        All others: as of `mlstm`.

    Returns:
        As `mlstm`. The state (c, n, m) stands for C = c exp(m) and n exp(m). With `normalize=False` the state is c alone.

    Raises:
        As `mlstm`, or, with `normalize=False`, as `linear_attention`.
    """
    if not normalize:
        for name, state in (("n_initial", n_initial), ("m_initial", m_initial)):
            if state is not None:
                raise ValueError(f"{name}: expected None with normalize=False, got {type(state).__name__}")
        _api._one_of("normalizer_grad", normalizer_grad, _api._GRADIENTS)
        _api._check_scalars(eps, chunk_size, version)
        _api._check_cast(autocast_kernel_dtype)
        in_float64 = isinstance(q, torch.Tensor) and q.dtype == torch.float64
        states = (torch.float32, torch.float64) if in_float64 else (torch.float32,)
        if dtype_state not in states:
            raise TypeError(f"dtype_state: expected {_api._either(states)} with normalize=False, got {dtype_state}")
        h, c = _linear.sigmoid_attention(
            q, k, v, i, f, c_initial, return_last_states, cu_seqlens, version, autocast_kernel_dtype
        )
        return (h, c) if return_last_states else h
    return _api.mlstm(
        q, k, v, _logarithm(i), f, c_initial, n_initial, m_initial, return_last_states, eps, chunk_size, autocast_kernel_dtype,
        normalizer_grad=normalizer_grad, version=version, cu_seqlens=cu_seqlens, dtype_state=dtype_state,
    )  # fmt: skip


def mlstm_sig_step(
    q, k, v, i, f, c, n=None, m=None, eps=1e-6, dtype_state=torch.float32, *, inplace=False, version="auto", normalize=True
):
    """One position of the mLSTM with sigmoid gates behind a state, for decoding. It has no gradient.

    Args:
        normalize: whether h is divided by a normaliser, as in `mlstm_sig`. With False the state is c alone: n and m are refused, eps is
            checked and has no effect, and `version` is a name of those that `versions` lists under `sigmoid_step`. In float64
            PyTorch's own operations compute it then.
        All others: as of `mlstm_step`, with the sigmoid of i and the equations of `mlstm_sig`.

    Returns:
        As `mlstm_step`, or with `normalize=False` h and c.

    Raises:
        As `mlstm_step`.
    """
    if not normalize:
        for name, state in (("n", n), ("m", m)):
            if state is not None:
                raise ValueError(f"{name}: expected None with normalize=False, got {type(state).__name__}")
        _api._check_scalars(eps, None, version)
        return _linear.sigmoid_step(q, k, v, i, f, c, dtype_state, inplace, version)
    return _api.mlstm_step(q, k, v, _logarithm(i), f, c, n, m, eps, dtype_state, inplace=inplace, version=version)


def _logarithm(i):
    """log(sigmoid(i)), in float32 at least; what is no tensor of numbers is left to `mlstm`, which says so."""
    if not isinstance(i, torch.Tensor) or not i.is_floating_point():
        return i
    return torch.nn.functional.logsigmoid(i if i.dtype == torch.float64 else i.float())
