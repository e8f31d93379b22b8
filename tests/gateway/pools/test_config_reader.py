"""Pools in YAML: what loads, and every fault with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.gateway.pools.config import HttpTarget, LmtpTarget, LocalTarget
from lmtool.gateway.pools.config_reader import ConfigError, load, parse
from lmtool.gateway.pools.references import SecretSource
from lmtool.gateway.pools.yaml_reader import rate_of, seconds_of

GLIDE = """
telemetry:
  logging: {level: INFO, encoding: json}
api:
  http: {host: 0.0.0.0, port: 9100, read_timeout: 30s, max_request_body_size: 4194304}
routers:
  language:
    - id: myrouter
      enabled: true
      strategy: weighted_round_robin
      retry: {max_retries: 3, base_multiplier: 2, min_delay: 2s, max_delay: 5s}
      models:
        - id: primary
          enabled: true
          weight: 3
          error_budget: 10/m
          latency: {decay: 0.06, warmup_samples: 3, update_interval: 30s}
          client: {timeout: 10s, max_idle_connections: 100, max_idle_connections_per_host: 2}
          openai:
            base_url: https://api.openai.com/v1
            chat_endpoint: /chat/completions
            model: gpt-3.5-turbo
            api_key: ${env:OPENAI_API_KEY}
            default_params: {temperature: 0.8, top_p: 1, max_tokens: 100, n: 1, stop: [END], seed: 7}
        - id: azure
          azureopenai:
            base_url: https://me.openai.azure.com/
            model: mine
            api_version: 2023-05-15
            api_key: "${env:OPENAI_API_KEY}"
        - id: second
          cohere:
            base_url: https://api.cohere.ai/v1
            model: command-light
            api_key: "$OPENAI_API_KEY"
            default_params: {temperature: 0.3}
        - id: third
          enabled: false
          anthropic: {model: claude-instant-1.2, api_key: "${env:OPENAI_API_KEY}"}
"""


def faults(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert caught.value.exit_code == 7
    return list(caught.value.hints)


def test_a_file_of_glide_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Word for word; its logs and its server's timeouts are accepted and left alone."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    config = parse(GLIDE)
    assert (config.host, config.port) == ("0.0.0.0", 9100)
    [pool] = config.pools
    assert (pool.id, pool.strategy, pool.retry.max_retries, pool.retry.max_delay) == (
        "myrouter",
        "weighted_round_robin",
        3,
        5.0,
    )
    first, azure, cohere = pool.members  # the third one is not enabled
    assert (first.weight, first.budget.tokens, first.budget.seconds, first.timeouts.total) == (3, 10, 60.0, 10.0)
    assert first.defaults == {
        "temperature": 0.8,
        "topP": 1,
        "maxTokens": 100,
        "n": 1,
        "stop": ["END"],
        "seed": 7,
    }
    assert [one.target.name for one in pool.members] == ["openai", "azureopenai", "cohere"]
    assert isinstance(cohere.target, HttpTarget)
    assert cohere.target.provider.api == "cohere_v1"
    assert isinstance(azure.target, HttpTarget)
    assert azure.target.settings.api_version == "2023-05-15"
    assert "secret" not in repr(config)


def test_a_file_of_glide_may_leave_models_out() -> None:
    """They are Glide's own defaults then. Under pools, and for a provider of which it has no model, one is named."""
    text = """
routers:
  language:
    - id: default
      models:
        - {id: openai, openai: {api_key: key}}
        - {id: anthropic, anthropic: {api_key: key}}
        - {id: cohere, cohere: {api_key: key}}
"""
    [router] = parse(text).pools
    assert [one.model for one in router.members] == ["gpt-4o", "claude-instant-1.2", "command-light"]
    assert faults(text.replace("cohere: {", "ollama: {")) == [
        "pools.yaml:8: routers.language[0].models[2].ollama has no model"
    ]
    own = model("{id: a, openai: {api_key: key}}")
    assert faults(own) == ["pools.yaml:4: pools[0].models[0].openai has no model"]
    assert len(faults(own + text)) == 1


def test_every_kind_of_member() -> None:
    """Our own models beside providers."""
    [pool] = parse(
        """
pools:
  - id: all
    overridable: [temperature, max_tokens]
    cache: {kind: memory, max_bytes: 2MiB, max_age: 10m}
    models:
      - {id: a, ollama: {model: llama3}}
      - {id: b, lmtp: {endpoint: "127.0.0.1:8080", model: tiny, default_params: {maxTokens: 9}}}
      - {id: c, local: {model: tiny}, prices: {prompt: 1, response: 2}, timeouts: {total: 1m30s, first_token: 500ms}}
      - {id: d, local: }
"""
    ).pools
    targets = [type(one.target) for one in pool.members]
    assert targets == [HttpTarget, LmtpTarget, LocalTarget, LocalTarget]
    assert pool.overridable == {"temperature", "maxTokens"}
    assert pool.cache is not None
    assert (pool.cache.max_bytes, pool.cache.max_age) == (2 << 20, 600.0)
    assert (pool.members[2].timeouts.total, pool.members[2].timeouts.first_token) == (90.0, 0.5)
    assert pool.members[1].defaults == {"maxTokens": 9}


def model(text: str) -> str:
    return f"pools:\n  - id: p\n    models:\n      - {text}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1: the file is empty"),
        ("a: [", "this is no YAML"),
        ("{}", "1: there are no pools"),
        ("pools: []", "1: there are no pools that are enabled"),
        ("pools:\n  - id: p\n    models: []", "3: pools[0] has no models; expected one at least"),
        ("pools:\n  - id: p\n    models:\n      - {id: a, enabled: false, local: {}}", "that are enabled"),
        ("pool: []\npools: []", "1: pool is not known here; did you mean pools?"),
        ("pools:\n  - id: p\n    strategy: prio\n    models: [{id: a, local: {}}]", "3: pools[0].strategy is 'prio'"),
        ("pools:\n  - id: p\n    strategy: least_cost\n    models: [{id: a, local: {}}]", "3: strategy least_cost"),
        (
            "pools:\n  - id: p\n    strategy: least_loaded\n    models: [{id: a, ollama: {model: m}}]",
            "3: strategy least",
        ),
        ("pools:\n  - id: p\n    overridable: [heat]\n    models: [{id: a, local: {}}]", "3: overridable: there is no"),
        (
            "pools:\n  - id: p\n    cache: {kind: sqlite}\n    models: [{id: a, local: {}}]",
            "3: pools[0].cache has no path",
        ),
        (model("{id: a, local: {}}") + model("{id: b, local: {}}")[7:], "5: two pools have the id 'p'"),
        (model("{id: a, local: {}}\n      - {id: a, local: {}}"), "5: two models have the id 'a'"),
        (model("{id: a}"), "4: pools[0].models[0] names no provider; expected one of openai"),
        (model("{id: a, opnai: {model: m}}"), "names no provider; did you mean openai?"),
        (model("{id: a, local: {}, ollama: {model: m}}"), "has ollama and local; expected one"),
        (model("{local: {}}"), "4: pools[0].models[0] has no id"),
        (model("{id: a, ollama: {}}"), "4: pools[0].models[0].ollama has no model"),
        (model("{id: a, openai: {model: m}}"), "has no api_key; expected one"),
        (
            model('{id: a, openai: {model: m, api_key: "${env:NO_SUCH}"}}'),
            "4: pools[0].models[0].openai.api_key: the environment variable NO_SUCH is not set",
        ),
        (model('{id: a, openai: {model: m, api_key: "${file:/no/such}"}}'), "cannot read the file /no/such"),
        (model('{id: a, openai: {model: m, api_key: "${vault:x}"}}'), "is no reference"),
        (model("{id: a, ollama: {model: m, base_url: localhost}}"), "base_url is no http or https URL"),
        (model("{id: a, ollama: {model: m, base_url: 'http://u:p@x/'}}"), "base_url has credentials"),
        (
            model("{id: a, anthropic: {model: m, api_key: k, default_params: {seed: 1}}}"),
            "anthropic has no parameter seed",
        ),
        (model("{id: a, anthropic: {model: m, api_key: k, default_params: {temperature: 7}}}"), "temperature is 7"),
        (model("{id: a, octoml: {model: m}}"), "OctoAI has closed; write openai"),
        (model("{id: a, bedrock: {model: m}}"), "needs the package litellm; install it:  pip install"),
        (
            "pools:\n  - id: p\n    continue: prefil\n    models: [{id: a, local: {}}]",
            "3: pools[0].continue is 'prefil'; expected prefill; did you mean prefill?",
        ),
        (
            "pools:\n  - id: p\n    continue: prefill\n    models: [{id: a, cohere: {model: m, api_key: k}}]",
            "3: continue: prefill needs a model that takes the beginning of its answer: anthropic, ollama",
        ),
        (
            model("{id: a, openai: {model: m, api_key: k, prefill: true}}"),
            "prefill is 'true'; expected none, last_message, prefix, continue_final_message",
        ),
        (model("{id: a, ollama: {model: m, prefill: prefix}}"), "prefill is 'prefix'; expected none, last_message"),
        (model("{id: a, cohere: {model: m, api_key: k, prefill: prefix}}"), "cohere has no prefill; leave it out"),
        (model("{id: a, local: {}, weight: 0}"), "weight is '0'; expected a whole number from 1"),
        (model("{id: a, local: {}, error_budget: 10}"), "error_budget is '10'; expected a rate such as 10/m"),
        (model("{id: a, local: {}, timeouts: {total: soon}}"), "expected a duration such as 200ms"),
        (model("{id: a, id: b, local: {}}"), "pools[0].models[0].id stands here twice"),
    ],
)
def test_faults_name_their_line(text: str, expected: str) -> None:
    """And what may stand there."""
    assert any(expected in fault for fault in faults(text)), faults(text)


def test_who_goes_on_with_an_answer() -> None:
    """Models that take a prefill by their provider, their address or their own word."""
    members = (
        "{id: a, openai: {model: m, api_key: k}}",
        '{id: b, openai: {model: m, api_key: k, base_url: "https://api.mistral.ai/v1"}}',
        '{id: c, openai: {model: m, base_url: "http://gpu:8000/v1", prefill: continue_final_message}}',
        "{id: d, anthropic: {model: m, api_key: k, prefill: none}}",
        "{id: e, anthropic: {model: m, api_key: k}}",
        "{id: f, cohere: {model: m, api_key: k}}",
        '{id: g, lmtp: {endpoint: "localhost:8080"}}',
    )
    listed = "".join(f"\n      - {one}" for one in members)
    [pool] = parse(f"pools:\n  - id: p\n    continue: prefill\n    models:{listed}\n").pools
    assert pool.summary == "p  priority  a, b, c, d, e, f, g  continue: prefill by b, c, e, g"
    [pool] = parse(f"pools:\n  - id: p\n    models:{listed}\n").pools
    assert pool.continue_by is None


def test_all_faults_are_reported_at_once() -> None:
    """In the order of lines."""
    found = faults(
        """
pools:
  - id: p
    stratgy: priority
    models:
      - {id: a, local: {}, weigth: 2}
      - {id: b, ollama: {model: m, default_params: {heat: 1}}}
"""
    )
    assert [fault.partition(": ")[0] for fault in found] == ["pools.yaml:4", "pools.yaml:6", "pools.yaml:7"]
    assert "did you mean strategy?" in found[0]
    assert "did you mean weight?" in found[1]


@pytest.mark.parametrize(
    "text",
    [
        'id: "${env:NO_SUCH}", local: {}',
        'id: a, openai: {model: m, api_key: "${env:NO_SUCH}"}',
        'id: a, ollama: {model: "${env:NO_SUCH}"}',
        'id: a, lmtp: {endpoint: "${env:NO_SUCH}"}',
    ],
)
def test_a_variable_that_is_missing_is_one_fault(text: str) -> None:
    """What depends on it is not said to be missing as well."""
    (fault,) = faults(model(f"{{{text}}}"))
    assert "the environment variable NO_SUCH is not set" in fault


def test_aliases_of_aliases_are_bounded() -> None:
    """A small file must not become a large one."""
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]
    assert "more than" in faults("\n".join(lines))[0]


def test_secrets_of_files_are_read_again(tmp_path: Path) -> None:
    """Without the newline at the end; a file that has gone leaves the key as it was."""
    file = tmp_path / "key"
    file.write_text("first\n")
    source = SecretSource.read(f"${{file:{file}}}")
    assert (source.secret.reveal(), repr(source)) == ("first", "SecretSource(***)")
    assert source.again() == source
    file.write_text("second")
    assert source.again().secret.reveal() == "second"
    file.unlink()
    assert source.again() == source
    assert SecretSource.read("a$$b").secret.reveal() == "a$b"


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    """Missing, or no text."""
    with pytest.raises(Exception, match="cannot read"):
        load(tmp_path / "none.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Exception, match="no UTF-8"):
        load(tmp_path / "binary")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("200ms", 0.2), ("30s", 30), ("1m30s", 90), ("2h", 7200), ("1.5", 1.5), ("5x", None), ("", None)],
)
def test_durations(text: str, seconds: float | None) -> None:
    """Units ms, s, m and h, also in a row; a plain number is seconds."""
    assert seconds_of(text) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(("text", "rate"), [("10/m", (10, 60.0)), ("5/s", (5, 1.0)), ("0/s", None), ("10", None)])
def test_rates(text: str, rate: tuple[int, float] | None) -> None:
    """A count from 1 on, and a unit of time."""
    assert rate_of(text) == rate
