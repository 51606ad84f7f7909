"""Settings: defaults, environment, arguments; what is refused, and how."""

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmring.config import SETTINGS, Config, configure

FIELDS = {name: type(default) for name, default in SETTINGS.items()}
INTEGERS = [name for name, kind in FIELDS.items() if kind is int]

# Every setting with the values it may have.
GOOD = {
    "slot_nbytes": st.just(-1) | st.integers(1, 1 << 20).map(lambda n: 4096 * n),
    "nslots": st.sampled_from((4, 8)),
    "eager_nbytes": st.integers(-1, 4096),
    "pair_queue_nbytes": st.integers(12, 40).map(lambda n: 1 << n) | st.just(-1),
    "one_shot_nbytes": st.integers(-1, 1 << 40),
    "flat_reduce_nbytes": st.integers(-1, 1 << 40),
    "round_nbytes": st.just(-1) | st.integers(128, 1 << 40),
    "latency_us": st.just(-1.0) | st.floats(0, 1e9),
    "touch_gbs": st.just(-1.0) | st.floats(0, 1e6, exclude_min=True),
    "hierarchical_nbytes": st.integers(-1, 1 << 40),
    "nearness": st.sampled_from((-1, 0, 1)),
    "timeout": st.none() | st.floats(0, allow_nan=False),
    "spin_us": st.just(-1.0) | st.floats(0, 1e9),
    "tick_ms": st.floats(0, 60_000, exclude_min=True),
    "stores": st.sampled_from((-1, 0, 1, 2, 3, 4)),
    "direct": st.sampled_from((-1, 0, 1)),
    "past_cache_nbytes": st.integers(-1, 1 << 40),
    "huge_pages": st.sampled_from((-1, 0, 1)),
    "placement": st.sampled_from(("auto", "local", "interleave")) | st.integers(0, 9999).map("bind:{}".format),
    "threads": st.just(-1) | st.integers(1, 32),
    "split_nbytes": st.integers(-1, 1 << 40),
    "allow_pickle": st.booleans(),
}

BAD = {
    "slot_nbytes": st.integers(max_value=1 << 40).filter(lambda n: n != -1 and (n <= 0 or n % 4096)),
    "nslots": st.integers().filter(lambda n: n not in (4, 8)),
    "eager_nbytes": st.integers(max_value=-2) | st.integers(4097),
    "pair_queue_nbytes": st.integers(max_value=1 << 40).filter(lambda n: n != -1 and (n < 4096 or n & (n - 1))),
    "one_shot_nbytes": st.integers(max_value=-2),
    "flat_reduce_nbytes": st.integers(max_value=-2),
    "hierarchical_nbytes": st.integers(max_value=-2),
    "nearness": st.integers().filter(lambda n: n not in (-1, 0, 1)),
    "round_nbytes": st.integers(max_value=127).filter(lambda n: n != -1),
    "latency_us": st.floats(max_value=0, exclude_max=True).filter(lambda x: x != -1) | st.just(float("nan")),
    "touch_gbs": st.floats(max_value=0).filter(lambda x: x != -1) | st.just(float("nan")),
    "past_cache_nbytes": st.integers(max_value=-2),
    "huge_pages": st.integers().filter(lambda n: n not in (-1, 0, 1)),
    "timeout": st.floats(max_value=0, exclude_max=True) | st.just(float("nan")),
    "spin_us": st.floats(max_value=0, exclude_max=True).filter(lambda x: x != -1)
    | st.just(float("nan"))
    | st.floats(1e9, exclude_min=True),
    "tick_ms": st.floats(max_value=0) | st.just(float("nan")) | st.floats(60_000, exclude_min=True),
    "stores": st.integers().filter(lambda n: n not in (-1, 0, 1, 2, 3, 4)),
    "direct": st.integers().filter(lambda n: n not in (-1, 0, 1)),
    "placement": st.sampled_from(("", "near", "bind", "bind:", "bind:-1", "bind:12345", "auto,local")),
    "threads": st.integers(max_value=-2) | st.just(0) | st.integers(33),
    "split_nbytes": st.integers(max_value=-2),
}


def value_of(config, name):
    return getattr(config if hasattr(config, name) else config.internals, name)


def test_every_setting_is_tested_here():
    assert set(GOOD) == set(FIELDS)
    assert set(BAD) == set(FIELDS) - {"allow_pickle"}


def test_without_environment_and_arguments_the_defaults_hold():
    assert configure({}) == Config()
    assert configure({"PATH": "/bin", "SHMRING_KERNEL": "avx2", "SHMRING_OTHER": "x"}) == Config()


@given(st.fixed_dictionaries({}, optional=GOOD))
def test_arguments_and_environment_set_the_same(chosen):
    environ = {f"SHMRING_{name.upper()}": str(value) for name, value in chosen.items()}
    by_environment, by_argument = configure(environ), configure({}, **chosen)
    assert by_environment == by_argument
    assert all(value_of(by_argument, name) == value for name, value in chosen.items())
    assert all(value_of(by_argument, name) == value_of(Config(), name) for name in set(FIELDS) - set(chosen))
    assert {name: type(value) for name in FIELDS if (value := value_of(by_environment, name)) is not None} == {
        name: kind for name, kind in FIELDS.items() if value_of(by_environment, name) is not None
    }


@given(st.fixed_dictionaries(GOOD), st.fixed_dictionaries(GOOD))
def test_arguments_win_over_the_environment(outside, inside):
    environ = {f"SHMRING_{name.upper()}": str(value) for name, value in outside.items()}
    assert configure(environ, **inside) == Config().changed(**inside)


@given(st.data(), st.sampled_from(sorted(BAD)))
def test_values_out_of_range_are_refused_by_name(data, name):
    value = data.draw(BAD[name])
    with pytest.raises(ValueError, match=rf"^{name}=.*must be"):
        configure({}, **{name: value})
    with pytest.raises(ValueError, match=rf"^SHMRING_{name.upper()}="):
        configure({f"SHMRING_{name.upper()}": str(value)})


@pytest.mark.parametrize("name", [name for name in INTEGERS if name.endswith("_nbytes")])
@pytest.mark.parametrize("value", [1 << 49, 1 << 63, 1 << 64, 1 << 2000])
def test_sizes_whose_products_might_overflow_are_refused_with_the_largest(name, value):
    must_be = "must be from 0 to 4096, .*" if name == "eager_nbytes" else f"must be at most {1 << 48}"
    with pytest.raises(ValueError, match=f"^{name}={value}: {must_be}$"):
        configure({}, **{name: value})
    with pytest.raises(ValueError, match=f"^SHMRING_{name.upper()}={value}: {must_be}$"):
        configure({f"SHMRING_{name.upper()}": str(value)})


@given(st.sampled_from(sorted(FIELDS)), st.text("abcxyz+-. ", min_size=0, max_size=6))
def test_text_that_is_no_value_is_refused_with_its_variable(name, text):
    with pytest.raises(ValueError, match=f"SHMRING_{name.upper()}="):
        configure({f"SHMRING_{name.upper()}": text})


@pytest.mark.parametrize("name", sorted(set(FIELDS) - {"placement"}))
@pytest.mark.parametrize("value", ["4096", b"8", [8], 8 + 0j])
def test_values_of_another_type_are_refused_by_name(name, value):
    with pytest.raises(TypeError, match=f"^{name}="):
        configure({}, **{name: value})


@pytest.mark.parametrize("value", [0, b"auto", None, ("auto",)])
def test_a_placement_is_a_text(value):
    with pytest.raises(TypeError, match=r"^placement="):
        configure({}, placement=value)


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [8.0, True, None])
def test_integers_are_not_floats_truths_or_none(name, value):
    with pytest.raises(TypeError, match=f"^{name}=.*int"):
        configure({}, **{name: value})


@pytest.mark.parametrize("text", ["none", "None", "NONE"])
def test_a_timeout_of_none_is_for_ever(text):
    assert configure({"SHMRING_TIMEOUT": text}).timeout is None
    assert configure({"SHMRING_TIMEOUT": "5"}, timeout=None).timeout is None
    assert configure({"SHMRING_TIMEOUT": text}, timeout=7).timeout == 7


@pytest.mark.parametrize("name", sorted(set(FIELDS) - {"timeout"}))
def test_nothing_but_the_timeout_can_be_none(name):
    with pytest.raises(ValueError, match=f"SHMRING_{name.upper()}='none'"):
        configure({f"SHMRING_{name.upper()}": "none"})


@pytest.mark.parametrize(("text", "value"), [("0", False), ("1", True), ("false", False), ("True", True)])
def test_truths_are_read_as_words_and_digits(text, value):
    assert configure({"SHMRING_ALLOW_PICKLE": text}).allow_pickle is value


def test_an_unknown_setting_is_refused_with_the_known_ones():
    with pytest.raises(TypeError, match=r"unknown setting 'slots'; known: slot_nbytes, .*allow_pickle"):
        configure({}, slots=3)
    with pytest.raises(TypeError, match="unknown setting 'colour'"):
        Config().changed(colour=1, slot_nbytes=4096)


def test_a_config_cannot_be_changed_in_place():
    with pytest.raises(FrozenInstanceError):
        Config().nslots = 4
    assert Config().changed(nslots=4).nslots == 4


@given(st.integers(1, 4096), st.integers(-1, 4096))
def test_an_eager_message_always_fits_its_slot(size, eager_nbytes):
    limit = Config().changed(eager_nbytes=eager_nbytes).eager_limit(size)
    assert 0 <= limit <= 4096
    assert limit == eager_nbytes or eager_nbytes == -1


@given(st.integers(1, 64), st.floats(0.5, 64))
def test_crowded_ranks_do_not_spin(size, processors):
    assert (Config().spin_ns(size, processors) > 0) == (size <= processors)
    assert Config(spin_us=1.5).spin_ns(size, processors) == 1500


def test_each_setting_has_its_origin():
    config = configure({"SHMRING_NSLOTS": "4", "SHMRING_SPIN_US": "3"}, spin_us=5.0, timeout=None)
    assert config.origins == {"nslots": "SHMRING_NSLOTS", "spin_us": "argument", "timeout": "argument"}
    assert configure({}).origins == {}
    assert config.changed(nslots=8).origins["nslots"] == "argument"
    assert config.origins["nslots"] == "SHMRING_NSLOTS"


@pytest.mark.parametrize(
    ("cache_kib", "slot_kib"),
    [(0, 256), (1, 128), (256, 128), (512, 128), (1024, 256), (1280, 256), (2048, 512), (65536, 512)],
)
def test_slots_follow_the_second_level_cache(cache_kib, slot_kib):
    config = Config().settled(cache_kib << 10)
    assert config.slot_nbytes == slot_kib << 10
    assert "second-level cache" in config.origins["slot_nbytes"]


@given(st.integers(0, 1 << 40))
def test_whatever_the_cache_slots_are_whole_pages(nbytes):
    assert Config().settled(nbytes).slot_nbytes % 4096 == 0


def test_a_slot_that_was_given_stays():
    config = configure({}, slot_nbytes=4096).settled(1 << 20)
    assert config.slot_nbytes == 4096
    assert config.origins == {"slot_nbytes": "argument"}
    assert config.changed(slot_nbytes=-1).settled(1 << 20).slot_nbytes == 256 << 10


def test_huge_pages_are_asked_for_unless_the_system_forbids_them():
    assert not any(Config().wants_huge_pages(word) for word in ("", "never", "deny"))
    assert all(Config().wants_huge_pages(word) for word in ("advise", "always", "within_size", "force"))
    assert Config(huge_pages=1).wants_huge_pages("never")
    assert not Config(huge_pages=0).wants_huge_pages("always")


@given(st.integers(1, 1024))
def test_pair_queues_of_a_rank_together_stay_small_and_each_holds_eight_long_pieces(size):
    limit = Config().pair_queue_limit(size)
    assert 256 << 10 <= limit <= 2 << 20
    assert limit & (limit - 1) == 0
    assert limit == 256 << 10 or limit * (size - 1) <= 4 << 20
    assert Config().changed(pair_queue_nbytes=4096).pair_queue_limit(size) == 4096


@pytest.mark.parametrize(
    ("second_level_kib", "queue_kib"), [(0, 2048), (256, 1024), (512, 1024), (1024, 2048), (4096, 2048)]
)
def test_a_pair_queue_of_two_ranks_is_twice_the_second_level_cache_from_one_to_two_mib(second_level_kib, queue_kib):
    assert Config().settled(second_level_kib << 10).pair_queue_limit(2) == queue_kib << 10


def test_pair_queues_beside_slots_that_were_set_are_not_smaller_than_half_a_mib():
    assert Config(slot_nbytes=4096).pair_queue_limit(2) == 512 << 10
    assert Config(slot_nbytes=16 << 20).pair_queue_limit(2) == 2048 << 10
