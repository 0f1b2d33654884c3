"""Secrets in command lines are hidden, and text that only resembles one is not."""

from __future__ import annotations

import random
import string

import pytest

from determinism.redaction import HIDDEN, REDACT_VARIABLE, redacted, redacted_code, redacted_text

SECRET = "hunter2"


@pytest.mark.parametrize(
    "words",
    [
        ["--token", SECRET],
        ["--api-key", SECRET],
        ["--api_key=" + SECRET],
        ["--apiKey", SECRET],
        ["-password", SECRET],
        ["--db-password=" + SECRET],
        ["--hf_token", SECRET],
        ["--hub-token=" + SECRET],
        ["--wandb.key=" + SECRET],
        ["--wandb-api-key", SECRET],
        ["logger.api_key=" + SECRET],
        ["+model.auth.client_secret=" + SECRET],
        ["--aws-secret-access-key", SECRET],
        ["env", "WANDB_API_KEY=" + SECRET, "python"],
        ["env", "TF_VAR_db_password=" + SECRET],
        ["--env=HF_TOKEN=" + SECRET],
        ["--connection-string", SECRET],
        ["postgres://ada:" + SECRET + "@db/runs"],
        ["https://" + SECRET + "@github.com/ada/model"],
        ["https://data.example/x?sig=" + SECRET + "&size=3"],
        ["-c", "import wandb; wandb.login(api_key='" + SECRET + "')"],
        ["sh", "-c", "python train.py --lr 0.1 --token " + SECRET + " --epochs 3"],
        ["sh", "-c", 'export API_TOKEN="' + SECRET + ' 2" && python train.py'],
        ['{"lr": 1, "password": "' + SECRET + '"}'],
        ["-H", "Authorization: Bearer " + SECRET + "abcdef"],
    ],
)
def test_secret_is_hidden_by_its_name(words: list[str]) -> None:
    shown = redacted(["python", "train.py", *words, "--lr", "0.1"])
    assert SECRET not in " ".join(shown)
    assert HIDDEN in " ".join(shown)
    assert [*shown[:2], *shown[-2:]] == ["python", "train.py", "--lr", "0.1"]
    assert redacted(shown) == shown


@pytest.mark.parametrize(
    "secret",
    [
        "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7",
        "ghp_" + "x7Yq2Lm9Zc4Vb8Nn1Kj6Hg3Fd5Sa0P",
        "sk-proj-" + "x7Yq2Lm9Zc4Vb8Nn1Kj6",
        "AKIA" + "IOSFODNN7EXAMPLE",
        "nvapi-" + "x7Yq2Lm9Zc4Vb8Nn1Kj6Hg3F",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "0123456789abcdef0123456789abcdef01234567",
    ],
)
@pytest.mark.parametrize("form", ["{}", "--run={}", "key:{}"])
def test_secret_is_hidden_by_its_form(secret: str, form: str) -> None:
    assert redacted([form.format(secret)]) == [form.format(HIDDEN)]


@pytest.mark.parametrize(
    "alphabet", [string.ascii_letters + string.digits, string.ascii_letters + string.digits + "-_"]
)
def test_random_text_is_hidden(alphabet: str) -> None:
    generator = random.Random(5)
    texts = ["".join(generator.choices(alphabet, k=40)) for _ in range(400)]
    missed = [text for text in texts if redacted([text]) == [text]]
    assert len(missed) <= 8


@pytest.mark.parametrize(
    "word",
    [
        "--max-tokens", "--max-new-tokens=512", "--tokenizer=bert-base-uncased", "--pad-token=[PAD]", "--eos_token=</s>", "--num-token=5",
        "--decoder-start-token=3", "--sort-key=length", "--key=value", "--keyword=x", "--author=ada", "--secretary=ada",
        "/home/ada/project/runs/2026-11-22/resnet50-imagenet-bs256-lr0.1/checkpoint_epoch_0012.pt",
        "model.encoder.layers.0.self_attn.in_proj_weight", "--learning-rate-schedule=cosine_with_warm_restarts", "train_resnet50_cifar10_seed42.py",
        "CamelCaseConfigurationOfTheExperiment", "--run-id=2026-11-22T10-33-21", "550e8400-e29b-41d4-a716-446655440000", "meta-llama/Llama-3.1-8B-Instruct",
        "data/imagenet/ILSVRC2012/train-00000-of-01024", "/usr/lib/python3.12/site-packages/torch/distributed/run.py", "0.0001", "1,2,3",
        "https://github.com/pytorch/pytorch/issues/195404", "/tmp/pytest-of-ada/pytest-0/test_one_thing0/trace", "trainer.max_epochs=3",
        "dataset.name=wikitext-103-raw-v1", "pretrained=facebook/wav2vec2-large-960h-lv60-self",
        "Qwen2-VL-7B-Instruct-GPTQ-Int4", "vit_base_patch16_clip_224.laion2b_ft_in12k_in1k", "--nproc_per_node=8", "localhost:29500",
        "/home/ada/.cache/huggingface/hub/models--bert-base-uncased/snapshots", "import os; print(os.path.join('a', 'b'))",
    ],
)  # fmt: skip
def test_text_that_is_not_a_secret_is_shown(word: str) -> None:
    assert redacted(["python", word, "512"]) == ["python", word, "512"]


def test_flag_without_a_value_does_not_hide_the_next_option() -> None:
    assert redacted(["--use-auth-token", "--epochs", "3"]) == ["--use-auth-token", "--epochs", "3"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('login(token="hunter2 and more")', 'login(token="***")'),
        ("os.environ['WANDB_API_KEY'] = 'hunter2'", "os.environ['WANDB_API_KEY'] = '***'"),
        ('settings = {"password": "hunter2", "user": "ada"}', 'settings = {"password": "***", "user": "ada"}'),
        ('client = Client("q7Zr91bXkT4mPw8sLd2VnE6y")', 'client = Client("***")'),
        ('load("s3://ada:hunter2@host/data")', 'load("s3://***@host/data")'),
    ],
)
def test_secret_in_a_line_of_code_is_hidden(line: str, shown: str) -> None:
    assert redacted_code(line) == shown


@pytest.mark.parametrize(
    "line",
    [
        "token = tokenizer.encode(text)", "for token in tokens:", "loss = model(batch[\"input_ids\"], token_type_ids=batch['token_type_ids'])",
        "eos_token = '</s>'", "x = self.encoder_layers_0_self_attention_in_projection_weight(x)", 'key = "length"',
        "torch.load('/home/ada/project/runs/2026-11-22/resnet50-imagenet-bs256-lr0.1/checkpoint_epoch_0012.pt')",
        "password = getpass()",
    ],
)  # fmt: skip
def test_line_of_code_without_a_secret_is_shown(line: str) -> None:
    assert redacted_code(line) == line


def test_hiding_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REDACT_VARIABLE, "0")
    assert redacted(["--token", SECRET]) == ["--token", SECRET]
    assert redacted_text(f"--token {SECRET}") == f"--token {SECRET}"


def test_long_text_does_not_hang() -> None:
    for piece in ("a", "a=", "--a ", "A1b", "a/", '"', "eyJ", "://", "-----BEGIN "):
        redacted([piece * 50_000])
