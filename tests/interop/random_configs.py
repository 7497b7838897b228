"""Random config.json files of every family, as people and transformers write them, with odd values."""
import json
import random
from pathlib import Path

# The keys of each family's configuration class and their defaults.
KEYS = json.loads((Path(__file__).resolve().parent / "config_keys.json").read_text())
FAMILIES = [name for name in KEYS if name != "transformers"]
DROPOUTS = ("attn_pdrop", "resid_pdrop", "embd_pdrop", "attention_dropout", "hidden_dropout")


def base_config(family, pick):
    """A small model's config.json, as somebody would write it."""
    heads = pick.choice((1, 2, 4))
    width = heads * pick.choice((4, 8))
    layers, vocabulary, context = pick.randint(1, 3), pick.randint(40, 70), pick.choice((16, 24, 32))
    if family in ("gpt2", "gptj"):
        config = {"n_layer": layers, "n_head": heads, "n_embd": width, "vocab_size": vocabulary,
                  "n_positions": context, "n_inner": pick.choice((None, width * 2 + 2))}
        if family == "gptj":
            config["rotary_dim"] = pick.choice((2, 4))
    else:
        config = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": width,
                  "intermediate_size": pick.randint(5, 40), "vocab_size": vocabulary,
                  "max_position_embeddings": context}
        if family == "gpt_neox":
            config["rotary_pct"] = pick.choice((0.5, 1.0))
        else:
            config["num_key_value_heads"] = pick.choice([n for n in (1, 2, 4) if heads % n == 0])
            if family == "qwen3" or pick.random() < 0.3:
                config["head_dim"] = pick.choice((4, 8, 16))
    return {"model_type": family, **config}


def rope_object(pick, family):
    """The object of rotary positions, sometimes with a mistake."""
    kind = pick.choice(("default", "linear", "llama3", "llama3", "linear", "yarn", "dynamic", "longrope"))
    rope = {pick.choice(("rope_type", "rope_type", "type")): kind}
    if kind != "default" or pick.random() < 0.2:
        rope["factor"] = pick.choice((2.0, 4.0, 8))
    if kind == "llama3":
        rope |= {"low_freq_factor": pick.choice((1.0, 2.0)), "high_freq_factor": pick.choice((4.0, 8.0)),
                 "original_max_position_embeddings": pick.choice((4, 8))}
        if pick.random() < 0.2:
            del rope[pick.choice(list(rope))]
    if kind in ("yarn",) and pick.random() < 0.5:
        rope["original_max_position_embeddings"] = 8
    if pick.random() < 0.6:
        rope["rope_theta"] = pick.choice((100.0, 10000.0, 500000.0))
    if pick.random() < (0.5 if family == "gpt_neox" else 0.1):
        rope["partial_rotary_factor"] = pick.choice((0.5, 1.0))
    if pick.random() < 0.05:
        rope = {"full_attention": rope}
    return rope


def change_rope(config, pick, family):
    for key in pick.choice((("rope_parameters",), ("rope_scaling",), ("rope_parameters", "rope_scaling"))):
        config[key] = pick.choice((rope_object(pick, family), rope_object(pick, family), None, {}))
    if pick.random() < 0.4:
        config[pick.choice(("rope_theta", "rotary_emb_base"))] = pick.choice((100.0, 5000, 1e6))
    if pick.random() < 0.1:
        config["original_max_position_embeddings"] = pick.choice((4, 8))


def change_windows(config, pick, family):
    layers = config.get("num_hidden_layers", config.get("n_layer", 1))
    if pick.random() < 0.9:
        config["sliding_window"] = pick.choice((None, 4, 8, 12, 64))
    if pick.random() < 0.5:
        config["use_sliding_window"] = pick.choice((True, True, False))
    if pick.random() < 0.5:
        config["max_window_layers"] = pick.randint(0, 3)
    if pick.random() < 0.3:
        config["layer_types"] = [pick.choice(("full_attention", "full_attention", "sliding_attention"))
                                 for _ in range(layers + (pick.random() < 0.1))]


def change_activation(config, pick, family):
    key = "activation_function" if family in ("gpt2", "gptj") else "hidden_act"
    config[key] = pick.choice(("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python", "relu",
                               "silu", "swish", "gelu_accurate", "gelu_python_tanh", "quick_gelu", "tanh"))


def change_dropout(config, pick, family):
    config[pick.choice(DROPOUTS)] = pick.choice((0.0, 0.1, 0.3, 0))


def other_value(default, pick):
    """A value of a key that is not its default."""
    for kind, other in ((bool, lambda: not default), (int, lambda: default + pick.choice((1, 2, 7))),
                        (float, lambda: pick.choice((0.0, 0.5, 1.0, 2.0))), (str, lambda: default + "x")):
        if isinstance(default, kind):
            return other()
    return pick.choice((True, False, 1, 4, 0.5, "x", [], {}, ["full_attention"]))


def change_any_key(config, pick, family):
    key = pick.choice(sorted(KEYS[family]))
    if key not in ("model_type", "vocab_size"):  # these make another model of it
        config[key] = other_value(KEYS[family][key], pick)


def change_known_key(config, pick, family):
    """Keys that people meet, with values that they meet."""
    name, values = pick.choice((
        ("tie_word_embeddings", (True, False)), ("is_causal", (True, False, None)), ("head_dim", (None, 4, 8)),
        ("attention_bias", (True, False)), ("mlp_bias", (True, False)), ("attention_chunk_size", (None, 4)),
        ("pad_token_id", (None, 0, 5, -1, 39)), ("eos_token_id", (2, [2, 3], None, 10 ** 6)),
        ("use_parallel_residual", (True, False)), ("scale_attn_weights", (True, False)),
        ("scale_attn_by_inverse_layer_idx", (True, False)), ("reorder_and_upcast_attn", (True, False)),
        ("rms_norm_eps", (1e-5, 1e-6, 0.01)), ("layer_norm_eps", (1e-5, 0.01)), ("layer_norm_epsilon", (1e-5, 0.01)),
        ("hidden_size", (8, 16)), ("num_attention_heads", (1, 2)), ("max_position_embeddings", (16, 32)),
        ("num_key_value_heads", (1, None)), ("pretraining_tp", (1, 2)), ("partial_rotary_factor", (0.5, 1.0)),
        ("rotary_pct", (0.5, 1.0)), ("rotary_dim", (2, 4)), ("initializer_range", (0.02, 1.0)), ("use_cache", (True, False)),
        ("torch_dtype", ("float32", "bfloat16")), ("dtype", ("float32",)), ("output_attentions", (True, False)),
        ("chunk_size_feed_forward", (0, 2)), ("gradient_checkpointing", (True, False)),
        ("quantization_config", (None, {"quant_method": "awq", "bits": 4})), ("n_ctx", (8, 16)),
        ("our_own_key", (1, "text", [1, 2])), ("logit_scale", (1.0, 2.0)), ("bias", (True,))))
    config[name] = pick.choice(values)


def drop_key(config, pick, family):
    key = pick.choice(list(config))
    if key != "model_type":
        if pick.random() < 0.5:
            del config[key]
        else:
            config[key] = None


CHANGES = ((change_rope, 5), (change_windows, 4), (change_activation, 2), (change_dropout, 3),
           (change_any_key, 6), (change_known_key, 6), (drop_key, 1))


def random_case(family, seed):
    pick = random.Random(f"{family} {seed}")
    config = base_config(family, pick)
    changes = [change for change, weight in CHANGES for _ in range(weight)]
    for _ in range(pick.choice((0, 1, 1, 1, 2, 3))):
        pick.choice(changes)(config, pick, family)
    return config, pick
