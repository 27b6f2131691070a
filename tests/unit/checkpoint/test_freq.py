"""When something is due."""

from hypothesis import given
from hypothesis import strategies as st

from areal_agent.checkpoint.freq import FrequencyControl
from areal_agent.config.experiment import EvaluatorConfig


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_every_second_step() -> None:
    control = FrequencyControl(freq_steps=2)
    assert [control.check() for _ in range(5)] == [False, True, False, True, False]


def test_nothing_set_never_fires() -> None:
    control = FrequencyControl()
    assert not any(control.check(epochs=1) for _ in range(20))


def test_epochs_and_seconds_fire_by_themselves() -> None:
    clock = Clock()
    control = FrequencyControl(freq_epochs=2, freq_secs=10.0, clock=clock)
    assert [control.check(epochs=e) for e in (0, 1, 0, 1, 0, 1)] == [False] * 3 + [True] + [
        False
    ] * 2
    clock.now += 9.5
    assert not control.check()
    clock.now += 0.5
    assert control.check()
    assert not control.check()
    assert control.check(epochs=1)  # the epochs were not set back by the seconds


@given(st.integers(1, 7), st.integers(1, 5), st.lists(st.booleans(), max_size=60))
def test_any_of_the_counters_fires(every_steps: int, every_epochs: int, ends: list[bool]) -> None:
    both = FrequencyControl(freq_steps=every_steps, freq_epochs=every_epochs)
    epochs = 0
    for n, end in enumerate(ends, start=1):
        epochs += end
        expected = n % every_steps == 0 or (end and epochs % every_epochs == 0)
        assert both.check(epochs=int(end)) == expected


def test_state_goes_on_and_the_settings_stay_new() -> None:
    clock = Clock()
    first = FrequencyControl(freq_steps=5, freq_secs=60.0, clock=clock)
    for _ in range(3):
        first.check()
    clock.now += 50
    state = first.state_dict()
    assert state == {"epochs": 0, "steps": 3, "secs": 50.0}

    later = Clock()
    later.now = 7.0
    second = FrequencyControl(freq_steps=4, freq_secs=60.0, clock=later)
    second.load_state_dict(state)
    assert second.check()  # the fourth step, by the new setting
    later.now += 10
    assert second.check()  # sixty seconds, fifty of them before
    assert not second.check()


def test_made_from_settings_each_user_counts_alone() -> None:
    config = EvaluatorConfig(freq_steps=2)
    first, second = FrequencyControl.of(config), FrequencyControl.of(config)
    assert not first.check()
    assert first.check()
    assert not second.check()
    assert second.check()
