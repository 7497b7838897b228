"""The ops of bench_kernels in PyTorch, for torch_kernels.py: what to launch and what it counts."""
import contextlib

import torch
import torch.nn.functional as F

VOCABULARY, STRIDE = 50257, 50304  # of our logits, rows are padded to the stride


class Extent:
    def __init__(self, width, heads, parameters, tokens, seq):
        self.c, self.h, self.parameters, self.n = width, heads, parameters, tokens
        self.t = min(seq, tokens)
        self.b = tokens // self.t


class Row:
    """What a builder returns: a launch for each copy of the operands, and what it counts."""

    def __init__(self, op, variant, size, make, read_write, flops=0.0, ceiling="copy",
                 backend="eager", around=contextlib.nullcontext, dtype=None):
        self.op, self.variant, self.size, self.make = op, variant, size, make
        self.bytes, self.flops, self.ceiling = float(read_write), float(flops), ceiling
        self.backend, self.around = backend, around
        self.dtype = dtype  # None: the one that was asked for


# --- operands ---

def normal(device, dtype, *shape):
    return torch.randn(shape, device=device, dtype=torch.float32).to(dtype)


def leaf(x):
    return x.detach().requires_grad_(True)


def backward_of(output, gradient, inputs):
    """A launch that runs only the backward pass."""
    return lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True)


# --- ops; each yields Rows ---

def gemm_rows(e, device, dtype, size):
    s = size
    layers = (("gemm_qkv", e.c, 3 * e.c), ("gemm_projection", e.c, e.c),
              ("gemm_fc", e.c, 4 * e.c), ("gemm_fc_projection", 4 * e.c, e.c))
    for op, i, o in layers:
        flops = 2.0 * e.n * i * o

        def forward(i=i, o=o):
            x, w, b = (normal(device, dtype, *d) for d in ((e.n, i), (i, o), (o,)))
            return lambda: torch.addmm(b, x, w)

        def dgrad(i=i, o=o):
            g, w = normal(device, dtype, e.n, o), normal(device, dtype, i, o)
            return lambda: g @ w.t()

        def wgrad(i=i, o=o):
            x, g = normal(device, dtype, e.n, i), normal(device, dtype, e.n, o)
            return lambda: x.t() @ g  # PyTorch keeps it in the inputs' dtype, not added

        for variant, make, dims in (("forward", forward, (e.n, o, i)),
                                    ("dgrad", dgrad, (e.n, i, o)), ("wgrad", wgrad, (i, o, e.n))):
            yield Row(op, variant, "%dx%dx%d" % dims, make, s * (e.n * i + i * o + e.n * o), flops,
                      "gemm")

    flops = 2.0 * e.n * VOCABULARY * e.c
    moved = s * (e.n * e.c + VOCABULARY * e.c + e.n * VOCABULARY)

    def head(x_shape, w_shape, transpose_x, transpose_w):
        def make():
            x, w = normal(device, dtype, *x_shape), normal(device, dtype, *w_shape)
            return lambda: (x.t() if transpose_x else x) @ (w.t() if transpose_w else w)
        return make

    # PyTorch's trainers pad the vocabulary; the shape is ours all the same.
    table, logits, hidden = (VOCABULARY, e.c), (e.n, VOCABULARY), (e.n, e.c)
    yield Row("gemm_head", "forward", "%dx%dx%d" % (e.n, VOCABULARY, e.c),
              head(hidden, table, False, True), moved, flops, "gemm")
    yield Row("gemm_head", "dgrad", "%dx%dx%d" % (e.n, e.c, VOCABULARY),
              head(logits, table, False, False), moved, flops, "gemm")
    yield Row("gemm_head", "wgrad", "%dx%dx%d" % (VOCABULARY, e.c, e.n),
              head(logits, hidden, True, False), moved, flops, "gemm")


def attention_backends():
    """Names and context makers of what this PyTorch has; eager where it has nothing."""
    if not hasattr(F, "scaled_dot_product_attention"):
        return [("eager", contextlib.nullcontext)]
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return [("sdpa", contextlib.nullcontext)]
    found = []
    for name, member in (("flash", "FLASH_ATTENTION"), ("cudnn", "CUDNN_ATTENTION"),
                         ("efficient", "EFFICIENT_ATTENTION")):
        backend = getattr(SDPBackend, member, None)
        if backend is not None:
            found.append((name, lambda backend=backend: sdpa_kernel(backend)))
    return found


def attend(q, k, v, causal_mask):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
    return F.softmax(scores.masked_fill(causal_mask, float("-inf")), dim=-1) @ v


def attention_rows(e, device, dtype, size):
    d = e.c // e.h
    dims = "%dx%dx%dx%d" % (e.b, e.h, e.t, d)
    forward_flops = 4.0 * e.t * e.t * e.c * e.b / 2
    moved = size * 4 * e.n * e.c + 4 * e.b * e.h * e.t
    for backend, around in attention_backends():
        def operands():
            mask = torch.ones(e.t, e.t, dtype=torch.bool, device=device).triu(1)
            # As they come out of the projection: side by side, [B, T, 3, H, d].
            qkv = leaf(normal(device, dtype, e.b, e.t, 3 * e.c))
            q, k, v = (x.view(e.b, e.t, e.h, d).transpose(1, 2) for x in qkv.split(e.c, dim=2))
            return qkv, q, k, v, mask

        def forward():
            _, q, k, v, mask = operands()
            q, k, v = q.detach(), k.detach(), v.detach()
            return lambda: attend(q, k, v, mask)

        def backward():
            qkv, q, k, v, mask = operands()
            out = attend(q, k, v, mask)
            return backward_of(out, normal(device, dtype, *out.shape), [q, k, v])

        yield Row("attention", "forward", dims, forward, moved, forward_flops, "gemm", backend,
                  around)
        yield Row("attention", "backward", dims, backward, 2 * moved, 2.5 * forward_flops, "gemm",
                  backend, around)


def norm_rows(e, device, dtype, size):
    dims, rows = "%dx%d" % (e.n, e.c), e.n * e.c * size

    def operands():
        return [normal(device, dtype, e.n, e.c), normal(device, dtype, e.c),
                normal(device, dtype, e.c)]

    def forward():
        x, w, b = operands()
        return lambda: F.layer_norm(x, (e.c,), w, b)

    def residual():
        x, w, b = operands()
        branch = normal(device, dtype, e.n, e.c)

        def launch():
            total = x + branch
            return total, F.layer_norm(total, (e.c,), w, b)
        return launch

    def backward():
        x, w, b = (leaf(y) for y in operands())
        out = F.layer_norm(x, (e.c,), w, b)
        return backward_of(out, normal(device, dtype, e.n, e.c), [x, w, b])

    yield Row("layernorm", "forward", dims, forward, 2 * rows + 8 * e.n)
    yield Row("layernorm", "residual", dims, residual, 4 * rows + 8 * e.n)
    # Ours adds the residual's gradient too, a read more; its bytes are not counted here.
    yield Row("layernorm", "backward", dims, backward, 3 * rows + 8 * e.n)


def elementwise_rows(e, device, dtype, size):
    wide, narrow = "%dx%d" % (e.n, 4 * e.c), "%dx%d" % (e.n, e.c)
    four, one = 4 * e.n * e.c * size, e.n * e.c * size

    def x4():
        return normal(device, dtype, e.n, 4 * e.c)

    def x1():
        return normal(device, dtype, e.n, e.c)

    def unary(f, make):
        def build():
            x = make()
            return lambda: f(x)
        return build

    def gradient(f, make):
        def build():
            x = leaf(make())
            out = f(x)
            return backward_of(out, make(), [x])
        return build

    def add():
        a, b = x1(), x1()
        return lambda: a + b

    def gelu(x):
        return F.gelu(x, approximate="tanh")

    yield Row("gelu", "forward", wide, unary(gelu, x4), 2 * four)
    yield Row("gelu", "backward", wide, gradient(gelu, x4), 3 * four)
    yield Row("relu", "forward", wide, unary(F.relu, x4), 2 * four)
    yield Row("relu", "backward", wide, gradient(F.relu, x4), 3 * four)
    yield Row("add", "forward", narrow, add, 3 * one)
    yield Row("dropout", "forward", narrow, unary(lambda x: F.dropout(x, 0.1), x1), 2 * one)
    if dtype != torch.float32:
        yield Row("cast", "from_fp32", narrow,
                  unary(lambda x: x.to(dtype), lambda: normal(device, torch.float32, e.n, e.c)),
                  one + 4 * e.n * e.c)
        yield Row("cast", "to_fp32", narrow, unary(lambda x: x.float(), x1), one + 4 * e.n * e.c)
    yield Row("column_sum", "backward", wide,
              unary(lambda x: x.sum(dim=0, dtype=torch.float32), x4), four + 4 * 4 * e.c)


def head_rows(e, device, dtype, size):
    def ids(*shape):
        return torch.randint(0, VOCABULARY, shape, device=device)

    def embedding():
        tokens, table = ids(e.b, e.t), normal(device, dtype, VOCABULARY, e.c)
        positions = normal(device, dtype, e.t, e.c)
        return lambda: F.embedding(tokens, table) + positions

    def embedding_gradient():
        tokens, table = ids(e.b, e.t), leaf(normal(device, dtype, VOCABULARY, e.c))
        positions = leaf(normal(device, dtype, e.t, e.c))
        out = F.embedding(tokens, table) + positions
        return backward_of(out, normal(device, dtype, *out.shape), [table, positions])

    def loss():
        logits, targets = 4 * normal(device, torch.float32, e.n, VOCABULARY), ids(e.n)
        return lambda: F.cross_entropy(logits, targets, reduction="none")

    def loss_gradient():
        # Loss and gradient together, as our kernel does them.
        logits = leaf(4 * normal(device, dtype, e.n, VOCABULARY))
        targets = ids(e.n)
        return lambda: torch.autograd.grad(F.cross_entropy(logits.float(), targets), [logits])

    dims, vocabulary = "%dx%d" % (e.n, e.c), "%dx%d" % (e.n, VOCABULARY)
    yield Row("embedding", "forward", dims, embedding,
              (2 * e.n + e.t) * e.c * size + 4 * e.n)
    yield Row("embedding", "backward", dims, embedding_gradient,
              e.n * e.c * size + 8 * (min(e.n, VOCABULARY) + e.t) * e.c + 4 * e.n)
    yield Row("cross_entropy", "loss", vocabulary, loss, 4 * e.n * VOCABULARY + 8 * e.n,
              dtype="fp32")
    yield Row("cross_entropy", "gradient", vocabulary, loss_gradient,
              4 * e.n * VOCABULARY + 8 * e.n + e.n * STRIDE * size)


def update_rows(e, device, dtype, size):
    """In fp32 whatever the dtype: PyTorch's optimizer knows no working copy in 16 bits."""
    count = e.parameters

    def optimizer(kind, **options):
        def make():
            p = torch.nn.Parameter(normal(device, torch.float32, count))
            p.grad = normal(device, torch.float32, count)
            try:
                optim = kind([p], fused=True, **options)
                optim.step()
            except (TypeError, RuntimeError):  # this version, or this device, has none
                optim = kind([p], **options)
            return optim.step
        return make

    def norm():
        x = normal(device, torch.float32, count)
        return lambda: torch.linalg.vector_norm(x)

    yield Row("adamw", "update", "%d" % count,
              optimizer(torch.optim.AdamW, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1),
              28 * count, backend="fp32")
    yield Row("sgd", "update", "%d" % count,
              optimizer(torch.optim.SGD, lr=1e-3, momentum=0.9, weight_decay=0.1), 20 * count,
              backend="fp32")
    yield Row("squared_norm", "forward", "%d" % count, norm, 4 * count, dtype="fp32")


FAMILIES = (gemm_rows, attention_rows, norm_rows, elementwise_rows, head_rows, update_rows)
