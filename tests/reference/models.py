"""The small models of tests/data/fixtures and what is expected of them, as fixtures are laid out: a folder of
Hugging Face's, `tokens.bin` (16 bits a token) and `ref/`."""
import numpy as np

import gpt2
import gptj
import llama
from arithmetic import Random, total_of_all
from files import from_bf16, to_bf16, token_bytes, write_json, write_safetensors
from gpt2 import cross_entropy
from training import AdamW, Muon, batch_at, loss_and_gradients, norm_of, train

TINY = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 256, "n_positions": 32}
# No size is a round number, and no head's width is even.
ODD = {"n_layer": 3, "n_head": 5, "n_embd": 35, "vocab_size": 211, "n_positions": 29}
HYPER = {"lr": 1e-3, "min_lr": 0.0, "warmup": 0, "schedule": "constant", "beta1": 0.9, "beta2": 0.95,
         "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}
PROMPT, CONTINUATION, SAMPLES, MASKS = 8, 16, 32, 10
# LLAMA has what GPT-2 has not: fewer heads of k and v, rotary positions, RMSNorm, SwiGLU and a head of its own.
# QWEN2 adds biases of q, k and v alone, frequencies for a longer context, and heads wider than the stream's share.
# QWEN3 adds norms of each head of q and k. GPTJ and NEOX add blocks whose attention and MLP take the same input.
LLAMA = {"architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
         "bos_token_id": 0, "eos_token_id": 0, "head_dim": 6, "hidden_act": "silu", "hidden_size": 24,
         "initializer_range": 0.02, "intermediate_size": 38, "max_position_embeddings": 24, "mlp_bias": False,
         "model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
         "rms_norm_eps": 1e-6, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
         "tie_word_embeddings": False, "vocab_size": 61}
QWEN2 = {name: value for name, value in LLAMA.items() if not name.endswith("_bias")} | {
    "architectures": ["Qwen2ForCausalLM"], "head_dim": 10, "hidden_size": 20, "intermediate_size": 40,
    "model_type": "qwen2", "num_attention_heads": 3, "num_key_value_heads": 1,
    "rope_parameters": {"rope_theta": 1000.0, "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
                        "high_freq_factor": 4.0, "original_max_position_embeddings": 12},
    "tie_word_embeddings": True, "use_sliding_window": False}
QWEN3 = {name: value for name, value in LLAMA.items() if name != "mlp_bias"} | {
    "architectures": ["Qwen3ForCausalLM"], "head_dim": 8, "model_type": "qwen3",
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "tie_word_embeddings": True, "use_sliding_window": False}
GPTJ = {"activation_function": "gelu_new", "architectures": ["GPTJForCausalLM"], "attn_pdrop": 0.0,
        "bos_token_id": 0, "embd_pdrop": 0.0, "eos_token_id": 0, "initializer_range": 0.02,
        "layer_norm_epsilon": gpt2.EPSILON, "model_type": "gptj", "n_embd": 32, "n_head": 4, "n_inner": None,
        "n_layer": 2, "n_positions": 24, "resid_pdrop": 0.0, "rotary_dim": 4, "tie_word_embeddings": False,
        "vocab_size": 61}
NEOX = {"architectures": ["GPTNeoXForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "bos_token_id": 0,
        "eos_token_id": 0, "hidden_act": "gelu", "hidden_dropout": 0.0, "hidden_size": 32, "initializer_range": 0.02,
        "intermediate_size": 72, "layer_norm_eps": gpt2.EPSILON, "max_position_embeddings": 24,
        "model_type": "gpt_neox", "num_attention_heads": 2, "num_hidden_layers": 2,
        "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": False, "use_parallel_residual": True, "vocab_size": 61}


def config_of(sizes, torch_dtype):
    end = sizes["vocab_size"] - 1
    return {"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.0,
            "bos_token_id": end, "embd_pdrop": 0.0, "eos_token_id": end, "initializer_range": 0.02,
            "layer_norm_epsilon": gpt2.EPSILON, "model_type": "gpt2", "n_ctx": sizes["n_positions"],
            "n_inner": None, "resid_pdrop": 0.0, "scale_attn_weights": True, "tie_word_embeddings": True,
            "torch_dtype": torch_dtype, **sizes}


def make_weights(sizes, seed, model=gpt2):
    """Biases are not 0 and gains not 1, so that one that is forgotten or swapped shows."""
    random, weights = Random(seed), {}
    for name, shape in model.shapes(sizes).items():
        bell = random.bell(shape)
        if len(shape) == 1:
            values = 1 + 0.2 * bell if name.endswith("weight") else 0.1 * bell
        else:
            # Large enough that continuations have clear leads and are not always one token again.
            width = shape[0] if name.startswith("h.") else shape[1]
            in_block = name.startswith(("h.", "model.layers.", "transformer.h.", "gpt_neox.layers."))
            values = (0.7 if in_block else 1.5) * bell / np.sqrt(np.float64(width))
        weights[name] = values.astype(np.float32)
    return weights


def make_tokens(vocabulary, count, seed):
    """A rule with exceptions, which a model can learn."""
    random = Random(seed)
    follows = random.below(vocabulary, vocabulary)
    free, keeps_rule = random.below(vocabulary, count), random.below(10, count) < 7
    ids = [int(free[0])]
    for at in range(1, count):
        ids.append(int(follows[ids[-1]] if keeps_rule[at] else free[at]))
    return np.array(ids)


def summary(x):
    """What stands for a whole tensor."""
    flat = x.reshape(-1)
    places = sorted({(len(flat) - 1) * i // (SAMPLES - 1) for i in range(SAMPLES)})
    return {"l2": norm_of({"": flat}), "sum": total_of_all(flat),
            "samples": [[at, float(flat[at])] for at in places]}


def greedy(model, p, c, prompt, count):
    """The most likely continuation, and the smallest lead of a token over the next best."""
    context = c["n_positions"] if "n_positions" in c else c["max_position_embeddings"]
    ids, lead = list(prompt), np.inf
    for _ in range(count):
        logits, _ = model.forward(p, c, np.array([ids[-context:]]))
        order = np.argsort(logits[0, -1])
        lead = min(lead, float(logits[0, -1, order[-1]] - logits[0, -1, order[-2]]))
        ids.append(int(order[-1]))
    return ids[len(prompt) :], lead


def masked_losses(model, p, c, logits, saved, targets, random):
    """The mean loss of the targets that count, and its gradients, for random masks, the last of which leaves out whole
    rows."""
    results = []
    for number in range(MASKS):
        mask = random.below(10, targets.size).reshape(targets.shape) < 1 + number
        if number == MASKS - 1:
            mask[1:] = False
        counted = int(mask.sum())
        losses, dlogits = cross_entropy(logits, targets)
        grad = model.backward(p, c, saved, dlogits * mask[..., None] * (targets.size / counted))
        largest = {name: int(np.argmax(np.abs(g))) for name, g in grad.items()}
        results.append({
            "mask": "".join("1" if counts else "0" for counts in mask.reshape(-1)),
            "loss": total_of_all(losses * mask) / counted, "grad_norm": norm_of(grad),
            "largest": {name: [at, float(grad[name].reshape(-1)[at])] for name, at in largest.items()}})
    return results


def muon_references(model, p, sizes, tokens, hyper):
    """The same training by Muon, with each of its scales."""
    results = []
    for scale, rate in (("shape", 0.02), ("rms", 0.005)):
        trained, h = dict(p), hyper | {"muon_scale": scale, "muon_lr": rate, "muon_momentum": 0.95}
        optimizer = Muon(trained, h, in_out=model is gpt2)
        trajectory = train(model, trained, sizes, tokens, h, optimizer)
        results.append({"scale": scale, "lr": rate, "momentum": 0.95, "trajectory": trajectory,
                        "final_params": {name: summary(x) for name, x in trained.items()},
                        "final_momentum": {name: summary(optimizer.first[name]) for name in sorted(optimizer.hidden)}})
    return results


def write_reference(folder, sizes, weights, tokens, hyper, model=gpt2):
    p = {name: tensor.astype(np.float64) for name, tensor in weights.items()}
    ids, targets = batch_at(tokens, 0, hyper)
    loss, losses, logits, grad = loss_and_gradients(model, p, sizes, ids, targets)
    masked = masked_losses(model, p, sizes, *model.forward(p, sizes, ids), targets, Random(hyper["steps"]))
    prompt = tokens[:PROMPT].tolist()
    continuation, lead = greedy(model, p, sizes, prompt, CONTINUATION)
    assert lead > 0.05, f"{folder.parent.name}: rounding could choose another token ({lead})"
    norm = norm_of(grad)
    muon = muon_references(model, p, sizes, tokens, hyper)
    optimizer = AdamW(p, hyper)
    trajectory = train(model, p, sizes, tokens, hyper, optimizer)
    write_safetensors(folder / "ref.safetensors", {"input_ids": ids, "targets": targets, "logits": logits} |
                      {"grad." + name: g for name, g in grad.items()})
    write_json(folder / "ref.json", {
        "hyper": hyper, "loss": loss, "loss_per_token": losses.reshape(-1).tolist(), "grad_norm": norm,
        "masked": masked, "trajectory": trajectory, "muon": muon, "greedy": {"prompt": prompt, "ids": continuation, "min_margin": lead},
        "final_params": {name: summary(x) for name, x in p.items()},
        "final_exp_avg": {name: summary(x) for name, x in optimizer.first.items()},
        "final_exp_avg_sq": {name: summary(x) for name, x in optimizer.second.items()}})


def write_model(folder, config, weights, dtype="F32"):
    (folder / "ref").mkdir(parents=True)
    write_json(folder / "config.json", config)
    write_safetensors(folder / "model.safetensors", weights, dtype)


def write_fixtures(folder):
    # Seeds are chosen: of some a first gradient is so near 0 that rounding to float32 decides which way Adam
    # goes, or the second choice of a continuation is close to the first.
    hyper = HYPER | {"batch": 4, "seq": 32, "steps": 20}
    tiny = make_weights(TINY, seed=225)
    tokens = make_tokens(TINY["vocab_size"], 4 * 32 * 20 + 1, seed=226)
    write_model(folder / "tiny", config_of(TINY, "float32"), tiny)
    (folder / "tiny" / "tokens.bin").write_bytes(token_bytes(tokens))
    write_reference(folder / "tiny" / "ref", TINY, tiny, tokens, hyper)

    # As some files of the hub have it: a prefix, and the causal mask among the weights. Its numbers are tiny's.
    context = TINY["n_positions"]
    mask = np.tril(np.ones((1, 1, context, context), np.float32))
    masks = {f"h.{layer}.attn.bias": mask for layer in range(TINY["n_layer"])}
    write_model(folder / "tiny-prefixed", config_of(TINY, "float32"),
                {"transformer." + name: tensor for name, tensor in (tiny | masks).items()})
    (folder / "tiny-prefixed" / "ref").rmdir()

    write_model(folder / "tiny-bf16", config_of(TINY, "bfloat16"), tiny, "BF16")
    rounded = {name: from_bf16(to_bf16(tensor)) for name, tensor in tiny.items()}
    write_reference(folder / "tiny-bf16" / "ref", TINY, rounded, tokens, hyper)

    hyper = HYPER | {"batch": 2, "seq": 23, "steps": 20, "lr": 6e-4, "min_lr": 6e-5, "warmup": 5,
                     "schedule": "cosine"}
    odd = make_weights(ODD, seed=294)
    tokens = make_tokens(ODD["vocab_size"], 2 * 23 * 20 + 1, seed=295)
    write_model(folder / "odd", config_of(ODD, "float32"), odd)
    (folder / "odd" / "tokens.bin").write_bytes(token_bytes(tokens))
    write_reference(folder / "odd" / "ref", ODD, odd, tokens, hyper)

    hyper = HYPER | {"batch": 2, "seq": 24, "steps": 20}
    for name, config, seed, model in (("llama", LLAMA, 317, llama), ("qwen2", QWEN2, 447, llama),
                                      ("qwen3", QWEN3, 633, llama), ("gptj", GPTJ, 535, gptj),
                                      ("gpt_neox", NEOX, 505, gptj)):
        weights = make_weights(config, seed, model)
        tokens = make_tokens(config["vocab_size"], 2 * 24 * 20 + 1, seed + 1)
        write_model(folder / name, config, weights)
        (folder / name / "tokens.bin").write_bytes(token_bytes(tokens))
        write_reference(folder / name / "ref", config, weights, tokens, hyper, model)
