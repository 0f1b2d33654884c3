"""Learns to balance a pole by policy gradient."""

import math

import numpy as np
import torch
from torch import Tensor, nn


class Pole:
    """A pole on a cart, which is pushed to the left or the right."""

    def __init__(self, seed: int | None = None) -> None:
        self.np_random = np.random.default_rng(seed)
        self.state = np.zeros(4)

    def reset(self) -> np.ndarray:
        self.state = self.np_random.uniform(-0.05, 0.05, 4)
        return self.state

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:
        place, speed, angle, turn = self.state
        push = 10.0 if action else -10.0
        pull = (push + 0.05 * turn**2 * math.sin(angle)) / 1.1
        turning = (9.8 * math.sin(angle) - math.cos(angle) * pull) / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1))
        moving = pull - 0.05 * turning * math.cos(angle) / 1.1
        self.state = np.array([place + 0.02 * speed, speed + 0.02 * moving, angle + 0.02 * turn, turn + 0.02 * turning])
        return self.state, 1.0, bool(abs(angle) > 0.2 or abs(place) > 2.4)


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, state: np.ndarray) -> torch.distributions.Categorical:
        return torch.distributions.Categorical(logits=self.layers(torch.from_numpy(state).float()))


def play(environment: Pole, policy: Policy) -> tuple[Tensor, float]:
    state, done, logs, total = environment.reset(), False, [], 0.0
    while not done and len(logs) < 30:
        choice = policy(state)
        action = choice.sample()
        logs.append(choice.log_prob(action))
        state, reward, done = environment.step(int(action))
        total += reward
    return torch.stack(logs).sum(), total


def main() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    environment, policy = Pole(), Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    for episode in range(4):
        log_probability, total = play(environment, policy)
        loss = -log_probability * total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"episode {episode}: {total:.0f}")


main()
