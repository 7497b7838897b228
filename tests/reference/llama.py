"""Llama, Qwen2 and Qwen3 as Hugging Face defines them, forward and backward by hand, in float64.

Norms are RMSNorm; positions rotate the columns of q and k; heads of k and v are shared by groups of query heads;
the MLP is down(silu(gate(x)) * up(x)); matrices are [out, in]. Qwen3 normalises each head of q and k before it
rotates them. `c` is what config.json says.
"""
import numpy as np

from arithmetic import PI, cos, exp, log, product, total, transpose
from gpt2 import attend, attend_backward, heads_of, joined


def shapes(c):
    """The parameters of a model by name."""
    width, inner = c["hidden_size"], c["intermediate_size"]
    query = c["num_attention_heads"] * c["head_dim"]
    key = c["num_key_value_heads"] * c["head_dim"]
    result = {"model.embed_tokens.weight": (c["vocab_size"], width)}
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        block = {"self_attn.q_proj": (query, width), "self_attn.k_proj": (key, width),
                 "self_attn.v_proj": (key, width), "self_attn.o_proj": (width, query),
                 "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner),
                 "input_layernorm": (width,), "post_attention_layernorm": (width,)}
        if c["model_type"] == "qwen3":
            block |= {"self_attn.q_norm": (c["head_dim"],), "self_attn.k_norm": (c["head_dim"],)}
        for name, shape in block.items():
            result[at + name + ".weight"] = shape
            if c["model_type"] == "qwen2" and name[-6:] in ("q_proj", "k_proj", "v_proj"):
                result[at + name + ".bias"] = shape[:1]
    result["model.norm.weight"] = (width,)
    if not c["tie_word_embeddings"]:
        result["lm_head.weight"] = (c["vocab_size"], width)
    return result


def linear(p, name, x):
    return product(x, transpose(p[name + ".weight"])) + p.get(name + ".bias", 0.0)


def linear_backward(p, grad, name, x, dy):
    rows = dy.reshape(-1, dy.shape[-1])
    grad[name + ".weight"] = product(transpose(rows), x.reshape(-1, x.shape[-1]))
    if name + ".bias" in p:
        grad[name + ".bias"] = total(rows, 0)
    return product(dy, p[name + ".weight"])


def rms_norm(p, c, name, x):
    root = np.sqrt(total(x * x)[..., None] / x.shape[-1] + c["rms_norm_eps"])
    normal = x / root
    return normal * p[name + ".weight"], (normal, root)


def rms_norm_backward(p, grad, name, saved, dy):
    normal, root = saved
    width = dy.shape[-1]
    grad[name + ".weight"] = total((dy * normal).reshape(-1, width), 0)
    dn = dy * p[name + ".weight"]
    return (dn - normal * (total(dn * normal)[..., None] / width)) / root


def frequencies(c):
    """The angles of the pairs of columns from one position to the next."""
    rope = c["rope_parameters"]
    pairs = np.arange(c["head_dim"] // 2)
    plain = exp(-2 * pairs / c["head_dim"] * log(np.float64(rope["rope_theta"])))
    if rope["rope_type"] == "default":
        return plain
    # Llama 3.1: how often the original context holds a wave decides how far it is stretched.
    waves = rope["original_max_position_embeddings"] * plain / (2 * PI)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    share = np.clip((waves - low) / (high - low), 0, 1)
    return (1 - share) * plain / rope["factor"] + share * plain


def cosine(x):
    """For any x; arithmetic.cos is for x from 0 to pi."""
    x = np.abs(x) % (2 * PI)
    return np.vectorize(cos)(np.where(x > PI, 2 * PI - x, x))


def angles(c, tokens):
    turned = np.arange(tokens)[:, None] * frequencies(c)
    return cosine(turned), cosine(turned - PI / 2)


def rotated(x, cosines, sines):
    """Columns i and i + half are a pair."""
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cosines - second * sines, first * sines + second * cosines], axis=-1)


def head_norm(p, c, name, x):
    """Normalises q or k [rows, heads, tokens, width of a head] if the model has a weight for that."""
    return rms_norm(p, c, name, x) if name + ".weight" in p else (x, None)


def head_norm_backward(p, grad, name, saved, dy):
    return rms_norm_backward(p, grad, name, saved, dy) if name + ".weight" in p else dy


def attention(p, c, at, q, k, v):
    heads, shared = c["num_attention_heads"], c["num_key_value_heads"]
    cosines, sines = angles(c, q.shape[1])
    q, norm_q = head_norm(p, c, at + "q_norm", heads_of(q, heads))
    k, norm_k = head_norm(p, c, at + "k_norm", heads_of(k, shared))
    q = rotated(q, cosines, sines)
    k = np.repeat(rotated(k, cosines, sines), heads // shared, axis=1)
    v = np.repeat(heads_of(v, shared), heads // shared, axis=1)
    mixed, attended = attend(q, k, v)
    return mixed, (attended, norm_q, norm_k, cosines, sines)


def attention_backward(p, c, grad, at, saved, dy):
    attended, norm_q, norm_k, cosines, sines = saved
    heads, shared = c["num_attention_heads"], c["num_key_value_heads"]

    def of_group(x):
        rows, _, tokens, width = x.shape
        return total(x.reshape(rows, shared, heads // shared, tokens, width), 2)

    dq, dk, dv = attend_backward(attended, dy)
    dq, dk = rotated(dq, cosines, -sines), rotated(of_group(dk), cosines, -sines)
    dq = head_norm_backward(p, grad, at + "q_norm", norm_q, dq)
    dk = head_norm_backward(p, grad, at + "k_norm", norm_k, dk)
    return joined(dq), joined(dk), joined(of_group(dv))


def block(p, c, at, x):
    normal, norm_1 = rms_norm(p, c, at + "input_layernorm", x)
    q, k, v = (linear(p, at + f"self_attn.{part}_proj", normal) for part in "qkv")
    mixed, attended = attention(p, c, at + "self_attn.", q, k, v)
    x = x + linear(p, at + "self_attn.o_proj", mixed)
    normal_2, norm_2 = rms_norm(p, c, at + "post_attention_layernorm", x)
    gate, up = linear(p, at + "mlp.gate_proj", normal_2), linear(p, at + "mlp.up_proj", normal_2)
    sigmoid = 1 / (1 + exp(-gate))
    hidden = gate * sigmoid * up
    saved = normal, norm_1, mixed, attended, normal_2, norm_2, gate, up, sigmoid, hidden
    return x + linear(p, at + "mlp.down_proj", hidden), saved


def block_backward(p, c, grad, at, saved, dx):
    normal, norm_1, mixed, attended, normal_2, norm_2, gate, up, sigmoid, hidden = saved
    dhidden = linear_backward(p, grad, at + "mlp.down_proj", hidden, dx)
    dgate = dhidden * up * (sigmoid + gate * sigmoid * (1 - sigmoid))
    dnormal = linear_backward(p, grad, at + "mlp.gate_proj", normal_2, dgate)
    dnormal = dnormal + linear_backward(p, grad, at + "mlp.up_proj", normal_2, dhidden * gate * sigmoid)
    dx = dx + rms_norm_backward(p, grad, at + "post_attention_layernorm", norm_2, dnormal)
    dmixed = linear_backward(p, grad, at + "self_attn.o_proj", mixed, dx)
    parts = attention_backward(p, c, grad, at + "self_attn.", attended, dmixed)
    dnormal = 0.0
    for part, dpart in zip("qkv", parts):
        dnormal = dnormal + linear_backward(p, grad, at + f"self_attn.{part}_proj", normal, dpart)
    return dx + rms_norm_backward(p, grad, at + "input_layernorm", norm_1, dnormal)


def head_of(c):
    return "model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"


def forward(p, c, ids):
    """The logits of ids [rows, tokens]."""
    x = p["model.embed_tokens.weight"][ids]
    blocks = []
    for layer in range(c["num_hidden_layers"]):
        x, saved = block(p, c, f"model.layers.{layer}.", x)
        blocks.append(saved)
    last, norm = rms_norm(p, c, "model.norm", x)
    return product(last, transpose(p[head_of(c)])), (ids, blocks, last, norm)


def backward(p, c, saved, dlogits):
    """The gradients of all parameters."""
    ids, blocks, last, norm = saved
    grad, head = {}, head_of(c)
    rows = dlogits.reshape(-1, dlogits.shape[-1])
    grad[head] = product(transpose(rows), last.reshape(-1, last.shape[-1]))
    dx = rms_norm_backward(p, grad, "model.norm", norm, product(dlogits, p[head]))
    for layer in reversed(range(c["num_hidden_layers"])):
        dx = block_backward(p, c, grad, f"model.layers.{layer}.", blocks[layer], dx)
    table = grad.setdefault("model.embed_tokens.weight", np.zeros_like(p["model.embed_tokens.weight"]))
    np.add.at(table, ids.reshape(-1), dx.reshape(-1, dx.shape[-1]))
    return grad
