"""GPT-J and GPT-NeoX as Hugging Face defines them, forward and backward by hand, in float64.

Attention and the MLP of a block take the same input, and the block adds both. The first columns of q and k rotate, and
the others do not; matrices are [out, in]; the output matrix is not the embedding. GPT-J has one LayerNorm in a block,
no biases in its attention, the tanh form of GELU and a bias of the logits. GPT-NeoX has two, one matrix for q, k
and v, and the exact GELU. `c` is what config.json says.
"""
import numpy as np

from arithmetic import PI, erf, exp
from gpt2 import attend, attend_backward, gelu, gelu_backward, heads_of, joined, layer_norm, layer_norm_backward
from llama import angles, linear, linear_backward, rotated

# The two models have the same parts under different names.
NAMES = {
    "gptj": {"embedding": "transformer.wte", "block": "transformer.h.", "norm_1": "ln_1", "norm_2": "ln_1",
             "qkv": ("attn.q_proj", "attn.k_proj", "attn.v_proj"), "out": "attn.out_proj", "widen": "mlp.fc_in",
             "narrow": "mlp.fc_out", "last_norm": "transformer.ln_f", "head": "lm_head"},
    "gpt_neox": {"embedding": "gpt_neox.embed_in", "block": "gpt_neox.layers.", "norm_1": "input_layernorm",
                 "norm_2": "post_attention_layernorm", "qkv": ("attention.query_key_value",),
                 "out": "attention.dense", "widen": "mlp.dense_h_to_4h", "narrow": "mlp.dense_4h_to_h",
                 "last_norm": "gpt_neox.final_layer_norm", "head": "embed_out"}}


def names_of(c):
    return NAMES[c["model_type"]]


def is_neox(c):
    return c["model_type"] == "gpt_neox"


def sizes_of(c):
    """Returns the number of layers, the widths of the stream and within an MLP, and the number of heads."""
    if is_neox(c):
        return c["num_hidden_layers"], c["hidden_size"], c["intermediate_size"], c["num_attention_heads"]
    return c["n_layer"], c["n_embd"], c["n_inner"] or 4 * c["n_embd"], c["n_head"]


def shapes(c):
    """Returns the shapes of the parameters by name."""
    names, (layers, width, inner, _) = names_of(c), sizes_of(c)
    result = {names["embedding"] + ".weight": (c["vocab_size"], width)}
    for layer in range(layers):
        at = f"{names['block']}{layer}."
        block = {names["norm_1"]: (width,), names["norm_2"]: (width,)}
        block |= {name: (3 * width // len(names["qkv"]), width) for name in names["qkv"]}
        block |= {names["out"]: (width, width), names["widen"]: (inner, width), names["narrow"]: (width, inner)}
        for name, shape in block.items():
            result[at + name + ".weight"] = shape
            if is_neox(c) or not name.startswith("attn."):
                result[at + name + ".bias"] = shape[:1]
    result |= {names["last_norm"] + part: (width,) for part in (".weight", ".bias")}
    result[names["head"] + ".weight"] = (c["vocab_size"], width)
    return result if is_neox(c) else result | {names["head"] + ".bias": (c["vocab_size"],)}


def exact_gelu(x):
    return 0.5 * x * (1 + erf(x / np.sqrt(np.float64(2))))


def exact_gelu_backward(x, dy):
    density = exp(-0.5 * x * x) / np.sqrt(np.float64(2 * PI))
    return dy * (0.5 * (1 + erf(x / np.sqrt(np.float64(2)))) + x * density)


def partly_rotated(c, x, direction=1):
    """GPT-J pairs columns 2i and 2i + 1, GPT-NeoX columns i and i + half of those that rotate."""
    if is_neox(c):
        rope = c["rope_parameters"]
        halves = np.arange(int(x.shape[-1] * rope["partial_rotary_factor"]))
    else:
        rope = {"rope_theta": 10000.0, "rope_type": "default"}
        halves = np.arange(c["rotary_dim"]).reshape(-1, 2).T.reshape(-1)  # the first columns of all pairs come first
    cosines, sines = angles({"head_dim": len(halves), "rope_parameters": rope}, x.shape[-2])
    result = x.copy()
    result[..., halves] = rotated(x[..., halves], cosines, direction * sines)
    return result


def query_key_value(p, c, at, x):
    """Returns all three by heads. GPT-NeoX's one matrix has the rows of q, k and v of one head, then of the next."""
    names, heads = names_of(c), sizes_of(c)[-1]
    made = [heads_of(linear(p, at + name, x), heads) for name in names["qkv"]]
    q, k, v = np.split(np.concatenate(made, axis=-1), 3, axis=-1)
    return partly_rotated(c, q), partly_rotated(c, k), v


def query_key_value_backward(p, c, grad, at, x, parts):
    names, (dq, dk, dv) = names_of(c), parts
    made = np.concatenate([partly_rotated(c, dq, -1), partly_rotated(c, dk, -1), dv], axis=-1)
    dx = 0.0
    for name, part in zip(names["qkv"], np.split(made, len(names["qkv"]), axis=-1)):
        dx = dx + linear_backward(p, grad, at + name, x, joined(part))
    return dx


def block(p, c, at, x):
    names = names_of(c)
    normal, norm_1 = layer_norm(p, at + names["norm_1"], x)
    normal_2, norm_2 = layer_norm(p, at + names["norm_2"], x)
    mixed, attended = attend(*query_key_value(p, c, at, normal))
    wide = linear(p, at + names["widen"], normal_2)
    bent = exact_gelu(wide) if is_neox(c) else gelu(wide)
    saved = normal, norm_1, normal_2, norm_2, mixed, attended, wide, bent
    return x + linear(p, at + names["out"], mixed) + linear(p, at + names["narrow"], bent), saved


def block_backward(p, c, grad, at, saved, dx):
    normal, norm_1, normal_2, norm_2, mixed, attended, wide, bent = saved
    names = names_of(c)
    parts = attend_backward(attended, linear_backward(p, grad, at + names["out"], mixed, dx))
    dnormal = query_key_value_backward(p, c, grad, at, normal, parts)
    dbent = linear_backward(p, grad, at + names["narrow"], bent, dx)
    dwide = exact_gelu_backward(wide, dbent) if is_neox(c) else gelu_backward(wide, dbent)
    dnormal_2 = linear_backward(p, grad, at + names["widen"], normal_2, dwide)
    if not is_neox(c):
        return dx + layer_norm_backward(p, grad, at + names["norm_1"], norm_1, dnormal + dnormal_2)
    dx = dx + layer_norm_backward(p, grad, at + names["norm_1"], norm_1, dnormal)
    return dx + layer_norm_backward(p, grad, at + names["norm_2"], norm_2, dnormal_2)


def forward(p, c, ids):
    """Returns the logits of ids [rows, tokens]."""
    names = names_of(c)
    x = p[names["embedding"] + ".weight"][ids]
    blocks = []
    for layer in range(sizes_of(c)[0]):
        x, saved = block(p, c, f"{names['block']}{layer}.", x)
        blocks.append(saved)
    last, norm = layer_norm(p, names["last_norm"], x)
    return linear(p, names["head"], last), (ids, blocks, last, norm)


def backward(p, c, saved, dlogits):
    """Returns the gradients of all parameters by name."""
    ids, blocks, last, norm = saved
    grad, names = {}, names_of(c)
    dlast = linear_backward(p, grad, names["head"], last, dlogits)
    dx = layer_norm_backward(p, grad, names["last_norm"], norm, dlast)
    for layer in reversed(range(len(blocks))):
        dx = block_backward(p, c, grad, f"{names['block']}{layer}.", blocks[layer], dx)
    table = grad[names["embedding"] + ".weight"] = np.zeros_like(p[names["embedding"] + ".weight"])
    np.add.at(table, ids.reshape(-1), dx.reshape(-1, dx.shape[-1]))
    return grad
