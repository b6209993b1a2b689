"""REINFORCE: the estimate against the exact gradient, the loss, and who is taught by what."""

import math

import pytest
import torch

from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked, scatter_tokens

WORDS = range(5, 10)


def fresh_keys(rows: int) -> torch.Tensor:
    return torch.randint(2**62, (rows,))


@pytest.fixture
def five_words(make):
    """An objective over five words with opinions, and one row with one masked position."""

    def made(**settings):
        absent = tuple(i for i in range(60) if i not in WORDS)
        objective = make(
            "adversarial",
            generator={"tie": "none"},
            model={"layers": 1, "hidden": 16, "max_positions": 8},
            absent=absent,
            discriminator_weight=0.0,
            **settings,
        )
        with torch.no_grad():
            for p in objective.parameters():
                p += 0.3 * torch.randn_like(p)
            objective.discriminator.score.weight *= 3
            texts = torch.tensor([[2, 5, word, 9, 6, 3] for word in WORDS])
            verdicts = objective.discriminator(texts, torch.zeros_like(texts))[:, 2]
            objective.discriminator.score.bias -= verdicts.mean()  # of different opinions
        ids = torch.tensor([[2, 5, 7, 9, 6, 3]])
        attention_mask = torch.ones_like(ids).bool()
        batch = Batch(ids, torch.zeros_like(ids), attention_mask, attention_mask, fresh_keys(1))
        masked = Masked(
            torch.tensor([[2, 5, 4, 9, 6, 3]]),
            torch.tensor([[2]]),
            torch.tensor([[True]]),
            torch.tensor([[7]]),
        )
        return objective, batch, masked

    return made


def exact_gradient(objective, batch, masked) -> dict[str, torch.Tensor]:
    """Of minus the expected reward: sum over the five words of p(word) R(word)."""
    c = objective.config
    logits = objective.generator(
        masked.inputs, batch.segments, batch.attention_mask, masked.positions
    )
    scores = logits[0, 0] / c.temperature
    if c.disallow_correct:
        scores[7] = -math.inf
    probs = scores.softmax(0)
    expected = 0.0
    for word in WORDS:
        text = scatter_tokens(batch.ids, masked.positions, torch.tensor([[word]]), masked.is_masked)
        score = objective.discriminator(text, batch.segments, batch.attention_mask)[0, 2].item()
        wrong = -score if word != 7 else score  # R = -log of the chance of the right verdict
        expected = expected + probs[word] * math.log1p(math.exp(wrong))
    objective.zero_grad()
    (-expected).backward()
    return {n: p.grad.clone() for n, p in objective.generator.named_parameters()}


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 2.0}, {"disallow_correct": True}, {"generator_weight": 0.5}]
)
def test_the_estimate_agrees_with_the_exact_gradient(settings, five_words):
    """60 estimates of 400 samples each; every parameter within five standard errors."""
    objective, batch, masked = five_words(**settings)
    exact = exact_gradient(objective, batch, masked)
    many = Batch(*(t.expand(400, -1) for t in batch[:4]), fresh_keys(400))
    is_masked = Masked(*(t.expand(400, -1) for t in masked))
    estimates = {name: [] for name in exact}
    torch.manual_seed(5)
    for _ in range(60):
        objective.zero_grad()
        many = many._replace(row_keys=fresh_keys(400))
        objective(many, is_masked, objective.totals(many, is_masked)).loss.backward()
        for name, p in objective.generator.named_parameters():
            estimates[name].append(p.grad.clone())
    power = 0.0
    for name, wanted in exact.items():
        found = torch.stack(estimates[name])
        error = found.std(0) / math.sqrt(len(found))
        wanted = wanted * settings.get("generator_weight", 1.0)
        assert ((found.mean(0) - wanted).abs() <= 5 * error + 1e-6).all(), name
        power = max(power, (wanted.abs() / (error + 1e-6)).max().item())
    assert power > 30  # a gradient that is clearly not zero was met


def test_the_baseline_reduces_the_variance(five_words):
    objective, batch, masked = five_words()
    many = Batch(*(t.expand(2000, -1) for t in batch[:4]), fresh_keys(2000))
    is_masked = Masked(*(t.expand(2000, -1) for t in masked))

    output = objective(many, is_masked, objective.totals(many, is_masked))
    reward = output.metric_sums[objective.metric_names.index("reward")].item() / 2000
    inputs = (masked.inputs, batch.segments, batch.attention_mask, masked.positions)
    state = objective.generator.states(*inputs)[0, 0].detach()

    def spread(baseline: float) -> float:
        """Of thirty estimates, with b set to that value: b = -log sigmoid(w h)."""
        with torch.no_grad():
            logit = -math.log(math.expm1(baseline))
            objective.baseline.weight.copy_(logit * state / state.square().sum())
        grads = []
        for seed in range(30):
            torch.manual_seed(seed)
            objective.zero_grad()
            fresh = many._replace(row_keys=fresh_keys(2000))
            objective(fresh, is_masked, objective.totals(fresh, is_masked)).loss.backward()
            grads.append(objective.generator.bias.grad.clone())
        return torch.stack(grads).std(0).norm().item()

    assert spread(reward) < 0.5 * spread(reward + 4)


def test_the_loss_against_a_slow_reference(make, batch, ask):
    objective = make("adversarial", generator_weight=0.7, discriminator_weight=11.0)
    with torch.no_grad():
        objective.baseline.weight.normal_()
    masked, output, sums = ask(objective, batch)
    states = objective.generator.states(
        masked.inputs, batch.segments, batch.attention_mask, masked.positions
    ).detach()
    logits = objective.generator.predict(states).detach().double()
    scores = objective.discriminator(output.corrupted, batch.segments, batch.attention_mask)
    detection = []
    for row, place in batch.attention_mask.nonzero().tolist():
        score = scores[row, place].item()
        wrong = -score if output.replaced[row, place] else score
        detection.append(math.log1p(math.exp(wrong)))
    where = {tuple(p): i for i, p in enumerate(batch.attention_mask.nonzero().tolist())}
    gained, missed, rewards = [], [], []
    for row, slot in masked.is_masked.nonzero().tolist():
        place = int(masked.positions[row, slot])
        reward = detection[where[row, place]]
        logit = (objective.baseline.weight[0] @ states[row, slot]).item()
        sigmoid = 1 / (1 + math.exp(-logit))
        sample = output.corrupted[row, place]
        chance = math.log(logits[row, slot].softmax(0)[sample])
        gained.append(chance * (reward - -math.log(sigmoid)))
        target = math.exp(-reward)
        missed.append(-target * math.log(sigmoid) - (1 - target) * math.log(1 - sigmoid))
        rewards.append(reward)
    n = len(rewards)
    detected = 11 * sum(detection) / len(detection)
    expected = 0.7 * (sum(missed) - sum(gained)) / n + detected
    assert output.loss.item() == pytest.approx(expected, rel=1e-4)
    metrics = objective.compute_metrics(sums)
    assert metrics["loss"] == pytest.approx(detected, rel=1e-5)
    assert metrics["reward"] == pytest.approx(sum(rewards) / n, rel=1e-5)
    assert metrics["baseline_loss"] == pytest.approx(sum(missed) / n, rel=1e-5)


def test_which_parameters_are_trained(make, batch, reached):
    objective = make("adversarial", generator={"tie": "none"}, discriminator_weight=0.0)
    own = {n for n, _ in objective.named_parameters() if n.startswith("generator.")}
    assert reached(objective, batch) == own | {"baseline.weight"}


def test_the_baseline_does_not_train_the_generator(make, batch, reached, monkeypatch):
    """With the samples' chances taken out, its own loss is all that the generator's part has."""
    objective = make("adversarial", generator={"tie": "none"}, discriminator_weight=0.0)
    monkeypatch.setattr(objective, "log_prob", lambda logits, *_: logits[..., 0].detach())
    assert reached(objective, batch) == {"baseline.weight"}
    assert objective.hidden_share() is None


def test_the_generator_learns_to_mislead(five_words):
    """Some hundred steps against a discriminator that stays as it is."""
    objective, batch, masked = five_words()
    many = Batch(*(t.expand(64, -1) for t in batch[:4]), fresh_keys(64))
    is_masked = Masked(*(t.expand(64, -1) for t in masked))
    learning = [*objective.generator.parameters(), *objective.baseline.parameters()]
    optimizer = torch.optim.Adam(learning, lr=3e-3)
    place = objective.metric_names.index("reward")
    torch.manual_seed(0)
    rewards = []
    for _ in range(150):
        many = many._replace(row_keys=fresh_keys(64))
        output = objective(many, is_masked, objective.totals(many, is_masked))
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        rewards.append(output.metric_sums[place].item() / 64)
    assert sum(rewards[-20:]) > 1.2 * sum(rewards[:20])
