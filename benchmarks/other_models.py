"""Models besides the GPT for measuring the overhead: larger images, a sequence, many tiny tensors, and agents that learn."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional


class Convolutions:
    """A residual network on images of 32 by 32 pixels, with SGD."""

    title = "convolutional net"

    def __init__(self) -> None:
        torch.manual_seed(0)
        width = 32
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()) for _ in range(8)
        )
        self.head = nn.Linear(width, 10)
        self.model = nn.ModuleList([self.stem, self.blocks, self.head])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def step(self) -> float:
        """One step; returns the loss."""
        x = self.stem(torch.randn(16, 3, 32, 32))
        for block in self.blocks:
            x = x + block(x)
        loss = functional.cross_entropy(self.head(x.mean((2, 3))), torch.randint(10, (16,)))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


class Recurrent:
    """An LSTM of two layers on random sequences, with Adam."""

    title = "LSTM"

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.embedding = nn.Embedding(1000, 128)
        self.lstm = nn.LSTM(128, 128, num_layers=2, batch_first=True)
        self.head = nn.Linear(128, 1000)
        self.model = nn.ModuleList([self.embedding, self.lstm, self.head])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def step(self) -> float:
        """One step; returns the loss."""
        tokens = torch.randint(1000, (16, 33))
        logits = self.head(self.lstm(self.embedding(tokens[:, :-1]))[0])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


class PolicyGradient:
    """REINFORCE on a made-up task: the policy chooses one action at a time, for a state of four numbers."""

    title = "policy gradient, tiny tensors"

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def step(self) -> float:
        """An episode of 64 actions, and one step of the optimizer; returns the loss."""
        state = torch.randn(4)
        chances, rewards = [], []
        for _ in range(64):
            policy = torch.distributions.Categorical(logits=self.model(state))
            action = policy.sample()
            chances.append(policy.log_prob(action))
            state = 0.9 * state + 0.1 * torch.randn(4) * (2 * action.item() - 1)
            rewards.append(-float(state.abs().sum()))
        loss = -(torch.stack(chances) * torch.tensor(rewards)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


class Agent:
    """Reinforcement learning as Stable-Baselines3 does it, with the environments of Gymnasium: `pip install stable-baselines3`."""

    def __init__(self, algorithm: str) -> None:
        """Make the agent.

        Args:
            algorithm: `PPO`, on CartPole, or `SAC`, on Pendulum.
        """
        import stable_baselines3

        self.title = f"{algorithm} of Stable-Baselines3"
        options, self._actions = {
            "PPO": ({"env": "CartPole-v1", "n_steps": 256}, 256),
            "SAC": ({"env": "Pendulum-v1", "learning_starts": 50}, 64),
        }[algorithm]
        self._agent = getattr(stable_baselines3, algorithm)("MlpPolicy", **options, seed=1, device="cpu")
        self.model = self._agent.policy
        self._agent.learn(self._actions)

    def step(self) -> None:
        """PPO: 256 actions and 40 steps of the optimizer; SAC: 64 actions and as many steps of its three optimizers."""
        self._agent.learn(self._actions, reset_num_timesteps=False)


OTHERS = {
    "cnn": Convolutions,
    "lstm": Recurrent,
    "rl": PolicyGradient,
    "ppo": partial(Agent, "PPO"),
    "sac": partial(Agent, "SAC"),
}
