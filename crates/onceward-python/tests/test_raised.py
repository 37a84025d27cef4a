"""What callers catch: the class that was raised, the ledger's answer, and nothing in the way of control flow."""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
import copy
import logging
import multiprocessing
import pickle
import urllib.error
from collections.abc import Callable
from typing import Any

import aiohttp
import botocore.exceptions
import grpc
import httpx
import pytest
import requests
import stripe

from onceward import (
    Failed,
    InDoubt,
    InProgress,
    InvalidInput,
    KeyReused,
    Ledger,
    NotDispatched,
    OncewardError,
    Receipt,
    ResultUnavailable,
    Timeout,
    current_operation,
    errors,
)


class Slots(Exception):
    __slots__ = ("a",)

    def __init__(self, a: int, *, b: int) -> None:
        self.a = a


class Strict(ValueError):
    def __new__(cls, one: int, two: int) -> Strict:
        return super().__new__(cls, one, two)


REQUEST = httpx.Request("POST", "http://x/")
RAISED: list[Exception] = [
    ConnectionError("x"), ConnectionRefusedError(111, "refused"), TimeoutError("x"), FileNotFoundError(2, "none", "/x"),
    KeyError("x"), ValueError("x"), UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), Slots(1, b=2), Strict(1, 2),
    ImportError("x", name="y"), OSError(5, "io"), httpx.ReadTimeout("x", request=REQUEST),
    httpx.HTTPStatusError("x", request=REQUEST, response=httpx.Response(500, request=REQUEST)),
    requests.ConnectionError("x"), requests.HTTPError("x", response=requests.Response()),
    aiohttp.ClientConnectionError("x"), aiohttp.ServerTimeoutError("x"),
    stripe.CardError("declined", None, "card_declined"),
    botocore.exceptions.ClientError({"Error": {"Code": "X"}}, "Send"), botocore.exceptions.NoRegionError(),
    urllib.error.URLError("x"),
]  # fmt: skip


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("certain", [True, False])
def test_an_error_is_of_the_class_that_was_raised_and_of_the_ledgers(
    ledger: Ledger, error: Exception, certain: bool
) -> None:
    def fails() -> None:
        raise error

    guarded = ledger.once(name="f", no_effect=type(error) if certain else ())(fails)
    with pytest.raises(type(error)) as caught:
        guarded()
    raised: Any = caught.value
    assert isinstance(raised, Failed if certain else InDoubt) and isinstance(raised, OncewardError)
    assert raised.__cause__ is error and raised.happened == ("no" if certain else "unknown") and raised.ran
    assert str(raised).startswith(f"[{raised.code}]") and "ledger." not in str(raised) and repr(raised)
    for name in ("errno", "response", "request", "filename"):
        if getattr(error, name, None) is not None:
            assert getattr(raised, name) is not None, name
    for again in (copy.copy(raised), copy.deepcopy(raised), pickle.loads(pickle.dumps(raised))):
        assert isinstance(again, type(error)) and isinstance(again, Failed if certain else InDoubt)
        assert (str(again), again.code, again.happened) == (str(raised), raised.code, raised.happened)
        assert again.operation.id == raised.operation.id and again.next == raised.next


def test_an_error_of_grpc_is_asked_as_before(ledger: Ledger) -> None:
    def fails() -> None:
        with grpc.insecure_channel("127.0.0.1:1") as channel:
            channel.unary_unary("/a/b", request_serializer=bytes, response_deserializer=bytes)(b"", timeout=5)

    with pytest.raises(grpc.RpcError) as caught:
        ledger.once(name="f")(fails)()
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNAVAILABLE and error.code == "IN_DOUBT" and error.details()


def test_the_next_step_is_python_and_works(ledger: Ledger) -> None:
    @ledger.once(name="f")
    def fails() -> None:
        raise ValueError("x")

    with pytest.raises(InDoubt) as doubt:
        fails()
    assert doubt.value.next and not doubt.value.options, "a person or a probe settles what may be a lost answer"
    assert eval(doubt.value.fix_command or "", {"ledger": ledger}).state == "in_doubt"


class Control(BaseException):
    pass


def of_name(module: str, name: str, base: type[BaseException] = Exception) -> type[BaseException]:
    """A class as another package defines it."""
    return type(name.rpartition(".")[2], (base,), {"__module__": module, "__qualname__": name})


CONTROL: list[type[BaseException]] = [
    KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Control, StopIteration,
    of_name("celery.exceptions", "Retry", of_name("celery.exceptions", "TaskPredicate")),
    of_name("celery.exceptions", "Ignore", of_name("celery.exceptions", "TaskPredicate")),
    of_name("arq.worker", "Retry", RuntimeError), of_name("prefect.exceptions", "Pause"),
    of_name("airflow.exceptions", "AirflowSkipException"), of_name("langgraph.errors", "GraphBubbleUp"),
]  # fmt: skip


@pytest.mark.parametrize("kind", CONTROL, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("class_", ["once", "idempotent"])
def test_control_flow_passes_unchanged_and_is_on_record(ledger: Ledger, kind: type[BaseException], class_: Any) -> None:
    signal = kind()
    runs: list[int] = []

    @ledger.once(name="f", class_=class_, retries=3, backoff=0)
    def steers() -> None:
        runs.append(1)
        raise signal

    with pytest.raises(kind) as caught:
        steers()
    assert caught.value is signal and not isinstance(caught.value, OncewardError)
    (record,) = ledger.operations()
    assert record.state == "in_doubt" and runs == [1]


def test_control_flow_of_coroutines(ledger: Ledger) -> None:
    retry = of_name("arq.worker", "Retry", RuntimeError)

    @ledger.once(name="f")
    async def steers() -> None:
        raise retry

    with pytest.raises(retry) as caught:
        asyncio.run(steers())
    assert not isinstance(caught.value, OncewardError)


def test_a_retry_loop_still_matches(ledger: Ledger) -> None:
    """As Celery's `autoretry_for` and tenacity's `retry_if_exception_type` do."""
    tries: list[int] = []

    @ledger.once(name="f")
    def refused() -> None:
        tries.append(1)
        requests.post("http://127.0.0.1:1")

    for _ in range(4):
        try:
            refused()
        except requests.ConnectionError:
            continue
    assert len(tries) == 4


def in_a_worker(place: str, how: str) -> Any:
    guarded = Ledger(place).once(name=how)(_fails)
    if how == "receipt":
        return Ledger(place).call("ok", {"a": 1}, lambda a: {"a": a})
    return guarded(how)


def _fails(how: str) -> None:
    if how == "refused":
        requests.post("http://127.0.0.1:1")
    raise ConnectionResetError("gone")


def test_errors_and_receipts_leave_a_process(ledger: Ledger) -> None:
    place = ledger.url
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(InDoubt) as doubt:
            pool.submit(in_a_worker, place, "reset").result()
        assert isinstance(doubt.value, ConnectionResetError)
        with pytest.raises(Failed) as failed:
            pool.submit(in_a_worker, place, "refused").result()
        assert isinstance(failed.value, requests.ConnectionError) and failed.value.operation is not None
        receipt: Receipt = pool.submit(in_a_worker, place, "receipt").result()
    assert (receipt.value, receipt.effect, receipt.replayed, receipt.ran) == ({"a": 1}, "updated", False, True)


def test_receipts_records_and_plans_are_copied_and_pickled(ledger: Ledger) -> None:
    guarded = ledger.once(name="f")(lambda a: {"a": a})
    plan = guarded.plan(1)
    first, replay = guarded.receipt(1), guarded.receipt(1)
    for copied in (copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))):
        for receipt in (first, replay):
            again = copied(receipt)
            for name in ("effect", "original_effect", "replayed", "value", "data", "json", "id", "reason", "warnings"):
                assert getattr(again, name) == getattr(receipt, name), name
            assert again.to_json() == receipt.to_json() and repr(again.operation) == repr(receipt.operation)
        assert (copied(plan).decision, copied(plan).id, copied(plan).operation) == (plan.decision, plan.id, None)
        assert copied(guarded.plan(1)).operation.state == "done"
    unpicklable = ledger.once(name="g", codec=None)(lambda: lambda: 1)
    with pytest.warns(UserWarning):
        got = unpicklable.receipt()
    with pytest.raises(ResultUnavailable):
        _ = pickle.loads(pickle.dumps(got)).value


@pytest.mark.parametrize("kind", [*errors._BY_CODE.values(), NotDispatched, ResultUnavailable])
def test_every_error_can_be_made_copied_and_pickled(kind: type[OncewardError]) -> None:
    error = kind("words")
    again = pickle.loads(pickle.dumps(copy.deepcopy(error)))
    assert type(again) is kind and str(again) == str(error) and again.code == kind.code


# What is returned instead of a result.


def a_generator(acts: Callable[[], None]) -> Any:
    acts()
    yield 1


async def a_coroutine(acts: Callable[[], None]) -> None:
    acts()


class Callable_:
    async def __call__(self) -> int:
        return 7


@pytest.mark.parametrize(
    "gives",
    [
        lambda acts: a_generator(acts),
        lambda acts: a_coroutine(acts),
        lambda acts: map(lambda _: acts(), [1]),
        lambda acts: filter(lambda _: acts(), [1]),  # type: ignore[arg-type, return-value]
        lambda acts: concurrent.futures.Future(),
    ],
)
def test_work_that_is_still_to_be_done_is_never_done(ledger: Ledger, gives: Any) -> None:
    acts: list[int] = []

    def function() -> Any:
        return gives(lambda: acts.append(1))

    for call in (lambda: ledger.call("f", {}, function), ledger.once(name="f")(function)):
        with pytest.raises(InDoubt):
            call()
    (record,) = ledger.operations()
    assert record.state == "in_doubt" and not acts


def test_generators_and_coroutines_are_refused_or_awaited(ledger: Ledger) -> None:
    with pytest.raises(TypeError, match="generator"):
        ledger.call("f", {"acts": 1}, a_generator)
    with pytest.raises(TypeError, match="acall"):
        ledger.call("f", {"acts": 1}, a_coroutine)
    assert not list(ledger.operations())

    async def main() -> list[Any]:
        async def work() -> int:
            return 5

        task = await ledger.acall("task", {}, lambda: asyncio.create_task(work()))
        kept = ledger.once(name="object")(Callable_())
        return [task.value, await kept()]  # type: ignore[misc]

    assert asyncio.run(main()) == [5, 7]


def test_inputs_that_do_not_fit_are_refused_before_anything_is_written(ledger: Ledger) -> None:
    with pytest.raises(TypeError, match="nothing was run"):
        ledger.call("charge", {"amont": 5}, lambda amount: None)
    assert not list(ledger.operations())


def test_a_call_within_itself_is_told_at_once(ledger: Ledger) -> None:
    def outer(depth: int = 0) -> int:
        return guarded(depth)

    guarded = ledger.once(name="f")(outer)

    async def outer_async() -> None:
        await guarded_async()

    guarded_async = ledger.once(name="g")(outer_async)
    with pytest.raises(InDoubt) as doubt:
        guarded()
    assert isinstance(doubt.value.__cause__, InProgress) and "within itself" in str(doubt.value)
    with pytest.raises(InDoubt):
        asyncio.run(guarded_async())


def test_another_key_within_a_call_is_fine(ledger: Ledger) -> None:
    @ledger.once(name="f")
    def factorial(n: int) -> int:
        return 1 if n == 0 else n * factorial(n - 1)

    assert factorial(5) == 120


def test_what_happens_is_logged(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "onceward")

    @ledger.once(name="charge")
    def charge(fails: bool) -> None:
        if fails:
            raise ValueError("x")

    charge(False)
    charge(False)
    with pytest.raises(InDoubt):
        charge(True)
    with pytest.raises(KeyReused):
        ledger.call("charge", {"a": 1}, lambda a: a, key="k") and ledger.call("charge", {"a": 2}, lambda a: a, key="k")
    said = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "onceward"]
    words = [("INFO", "ran"), ("INFO", "replayed"), ("WARNING", "IN_DOUBT")]
    for (level, word), (seen, message) in zip(words, said, strict=False):
        assert level == seen and word in message and "charge" in message


def test_a_timeout_is_a_timeout(ledger: Ledger) -> None:
    @ledger.once(name="f")
    def late() -> None:
        raise httpx.ReadTimeout("late")

    with pytest.raises(Timeout) as timeout:
        late()
    assert isinstance(timeout.value, (TimeoutError, httpx.ReadTimeout)) and timeout.value.code == "TIMEOUT"


def test_help_says_what_each_option_does() -> None:
    import inspect

    assert set(inspect.signature(Ledger.once).parameters) > {"key", "volatile", "known_failures", "lease", "on_expired"}
    words = inspect.getdoc(Ledger.once) or ""
    assert all(
        f"`{name}" in words for name in inspect.signature(Ledger.once).parameters if name not in ("self", "function")
    )


def test_the_operation_is_gone_after_the_call(ledger: Ledger) -> None:
    ledger.once(name="f")(lambda: current_operation())
    with pytest.raises(LookupError):
        current_operation()
    with pytest.raises(InvalidInput):
        ledger.call("", {}, print)


def test_a_group_stays_a_group(ledger: Ledger) -> None:
    group: Any = getattr(builtins, "ExceptionGroup", None)
    if group is None:
        # Python 3.10 has no groups.
        return

    @ledger.once(name="order")
    def order() -> None:
        raise group("both", [ValueError("a"), KeyError("b")])

    with pytest.raises(group) as raised:
        order()
    assert isinstance(raised.value, InDoubt) and len(raised.value.exceptions) == 2
    matched, _ = raised.value.split(ValueError)
    assert str(matched.exceptions[0]) == "a"
    assert type(pickle.loads(pickle.dumps(raised.value))) is InDoubt, "its members are not sent along"
