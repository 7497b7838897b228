"""The loss of a model and its gradients, AdamW, Muon, the clipping of gradients and the schedules of the learning rate,
and a training with them."""
import numpy as np

from arithmetic import PI, cos, power, product, total, total_of_all, transpose
from gpt2 import cross_entropy


def learning_rate(update, h):
    """Of an update, counted from 0: a rise over `warmup` updates, then the schedule."""
    if update < h["warmup"]:
        return h["lr"] * (update + 1) / h["warmup"]
    r = (update - h["warmup"]) / max(1, h["steps"] - h["warmup"])
    if h["schedule"] == "constant":
        return h["lr"]
    if h["schedule"] == "linear":
        return h["lr"] + (h["min_lr"] - h["lr"]) * r
    return h["min_lr"] + (h["lr"] - h["min_lr"]) * (1 + cos(PI * r)) / 2


def norm_of(tensors):
    squares = np.array([total_of_all(x * x) for x in tensors.values()])
    return float(np.sqrt(total(squares)))  # Python's own sum() adds in a way that depends on its release


def clip_factor(norm, clip):
    return min(1.0, clip / (norm + 1e-6)) if clip > 0 else 1.0


class AdamW:
    def __init__(self, p, h):
        self.h, self.updates = h, 0
        self.first = {name: np.zeros_like(x) for name, x in p.items()}
        self.second = {name: np.zeros_like(x) for name, x in p.items()}

    def update(self, p, grad, rate):
        self.updates += 1
        beta1, beta2 = self.h["beta1"], self.h["beta2"]
        correction1, correction2 = (1 - power(beta, self.updates) for beta in (beta1, beta2))
        for name, g in grad.items():
            m = self.first[name] = beta1 * self.first[name] + (1 - beta1) * g
            v = self.second[name] = beta2 * self.second[name] + (1 - beta2) * (g * g)
            # Decay is for matrices: biases and the gains of LayerNorm keep their size.
            decay = self.h["weight_decay"] if p[name].ndim >= 2 else 0.0
            step = (m / correction1) / (np.sqrt(v / correction2) + self.h["eps"])
            p[name] = p[name] * (1 - rate * decay) - rate * step


def orthogonalized(matrix):
    """Five Newton-Schulz iterations, as https://kellerjordan.github.io/posts/muon lists them."""
    x = matrix if matrix.shape[0] <= matrix.shape[1] else transpose(matrix)
    x = x / max(float(np.sqrt(total_of_all(x * x))), 1e-7)
    for _ in range(5):
        a = product(x, transpose(x))
        x = 3.4445 * x + product(-4.7750 * a + 2.0315 * product(a, a), x)
    return x if matrix.shape[0] <= matrix.shape[1] else transpose(x)


class Muon(AdamW):
    """AdamW, but for the matrices of blocks. `in_out`: their rows are inputs."""

    def __init__(self, p, h, in_out):
        super().__init__(p, h)
        tables = ("wte", "wpe", "embed", "lm_head")  # embed_tokens, embed_in, embed_out
        self.hidden = {name for name, x in p.items() if x.ndim == 2 and not any(table in name for table in tables)}
        self.in_out = in_out

    def update(self, p, grad, rate):
        super().update(p, {name: g for name, g in grad.items() if name not in self.hidden}, rate)
        momentum, rate = self.h["muon_momentum"], rate * self.h["muon_lr"] / self.h["lr"]
        for name in self.hidden:
            g = grad[name]
            m = self.first[name] = momentum * self.first[name] + (1 - momentum) * g
            inputs, outputs = p[name].shape if self.in_out else p[name].shape[::-1]
            size = {"shape": np.sqrt(max(1.0, outputs / inputs)),
                    "rms": 0.2 * np.sqrt(max(outputs, inputs))}[self.h["muon_scale"]]
            step = size * orthogonalized(momentum * m + (1 - momentum) * g)
            p[name] = p[name] * (1 - rate * self.h["weight_decay"]) - rate * step


def batch_at(tokens, update, h):
    """Update k reads the k-th piece of rows * tokens ids; targets are the ids one further on."""
    count = h["batch"] * h["seq"]
    piece = tokens[update * count : (update + 1) * count + 1]
    return piece[:-1].reshape(h["batch"], h["seq"]), piece[1:].reshape(h["batch"], h["seq"])


def loss_and_gradients(model, p, c, ids, targets):
    """Returns the loss of a model of module `model`, that of each token, the logits and the gradients by name."""
    logits, saved = model.forward(p, c, ids)
    losses, dlogits = cross_entropy(logits, targets)
    return total_of_all(losses) / targets.size, losses, logits, model.backward(p, c, saved, dlogits)


def train(model, p, c, tokens, h, optimizer):
    """Trains a model of module `model`. Changes `p`. Returns for each update what was before it."""
    trajectory = []
    for update in range(h["steps"]):
        ids, targets = batch_at(tokens, update, h)
        loss, _, _, grad = loss_and_gradients(model, p, c, ids, targets)
        norm, rate = norm_of(grad), learning_rate(update, h)
        factor = clip_factor(norm, h["clip"])
        optimizer.update(p, {name: g * factor for name, g in grad.items()}, rate)
        trajectory.append({"step": update, "loss": loss, "grad_norm": norm, "lr": rate})
    return trajectory
