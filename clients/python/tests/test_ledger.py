"""The acknowledgements that a consumer sends for a batch."""

from __future__ import annotations

from made_up import delivery
from queen_client.delivery import Delivery, Lease
from queen_client.ledger import Ledger

LEASE = Lease("lease", 60.0, 0)


def batch(*names: str) -> list[Delivery]:
    return [delivery(name, LEASE) for name in names]


def due(ledger: Ledger) -> list[tuple[str, str]]:
    return [(ack.delivery.id, ack.status) for ack in ledger.take()]


def test_the_last_that_is_done_speaks_for_its_partition() -> None:
    messages = batch("a1", "a2", "b1")
    ledger = Ledger(messages)
    for message in messages:
        ledger.done(message)
    ledger.give_back()
    assert due(ledger) == [("a2", "completed"), ("b1", "completed")]
    assert due(ledger) == []


def test_behind_a_failure_nothing_of_its_partition_is_handled_and_it_is_given_back_at_once() -> None:
    a1, a2, a3, b1 = batch("a1", "a2", "a3", "b1")
    ledger = Ledger([a1, a2, a3, b1])
    ledger.done(a1)
    ledger.failed(a2, "why")
    assert not ledger.is_open(a3) and ledger.is_open(b1)
    ledger.done(b1)
    ledger.give_back()
    acks = ledger.take()
    assert sorted((ack.delivery.id, ack.status) for ack in acks) == [
        ("a1", "completed"), ("a2", "failed"), ("a3", "retry"), ("b1", "completed"),
    ]  # fmt: skip
    assert [ack.error for ack in acks if ack.status == "failed"] == ["why"]


def test_unhandled_messages_are_given_back_through_the_first_one() -> None:
    a1, a2, a3, b1, b2 = batch("a1", "a2", "a3", "b1", "b2")
    ledger = Ledger([a1, a2, a3, b1, b2])
    ledger.done(a1)
    ledger.give_back()
    assert due(ledger) == [("a1", "completed"), ("a2", "retry"), ("b1", "retry")]


def test_a_batch_that_failed_as_a_whole_names_every_message() -> None:
    messages = batch("a1", "a2", "b1")
    for auto_ack in (True, False):
        ledger = Ledger(messages, auto_ack)
        ledger.all_failed(messages, "why")
        ledger.give_back()
        assert due(ledger) == [("a1", "failed"), ("a2", "failed"), ("b1", "failed")]


def test_what_a_handler_acknowledged_is_not_acknowledged_again() -> None:
    a1, a2 = batch("a1", "a2")
    ledger = Ledger([a1, a2])
    a1.settle("completed")
    ledger.done(a1)
    assert due(ledger) == [] and ledger.is_open(a2)


def test_nothing_behind_a_returned_message_is_handled_or_reported() -> None:
    a1, a2 = batch("a1", "a2")
    ledger = Ledger([a1, a2])
    a1.settle("retry", released=True)
    ledger.done(a1)
    assert not ledger.is_open(a2)
    ledger.give_back()
    assert due(ledger) == []


def test_a_nack_that_the_broker_has_put_aside_ends_the_partition_and_what_is_behind_it_is_given_back() -> None:
    a1, a2 = batch("a1", "a2")
    ledger = Ledger([a1, a2])
    a1.settle("failed")
    ledger.done(a1)
    assert not ledger.is_open(a2)
    ledger.give_back()
    assert due(ledger) == [("a2", "retry")]


def test_behind_a_nack_that_made_a_dead_letter_the_lease_stays() -> None:
    a1, a2 = batch("a1", "a2")
    ledger = Ledger([a1, a2])
    a1.settle("failed", dead_letter=True)
    ledger.done(a1)
    assert ledger.is_open(a2) and not ledger.is_settled()
    ledger.give_back()
    assert due(ledger) == [("a2", "retry")]


def test_a_lease_that_handlers_ended_themselves_is_not_lost() -> None:
    a1, a2, b1 = batch("a1", "a2", "b1")
    ledger = Ledger([a1, a2, b1])
    assert not ledger.is_settled()
    a2.settle("completed", released=True)
    assert not ledger.is_settled()
    b1.settle("completed", released=True)
    assert ledger.is_settled()


def test_without_auto_ack_only_failures_are_reported() -> None:
    a1, a2, b1, c1, c2 = batch("a1", "a2", "b1", "c1", "c2")
    ledger = Ledger([a1, a2, b1, c1, c2], auto_ack=False)
    ledger.done(a1)
    ledger.failed(b1, "why")
    ledger.failed(c1, "why")
    assert not ledger.is_open(c2)
    ledger.give_back()
    assert due(ledger) == [("b1", "failed"), ("c1", "failed"), ("c2", "retry"), ("a2", "retry")]


def test_a_failure_takes_no_message_along_that_its_handler_has_still_to_acknowledge() -> None:
    a1, a2, b1, b2 = batch("a1", "a2", "b1", "b2")
    ledger = Ledger([a1, a2, b1, b2], auto_ack=False)
    ledger.done(a1)
    ledger.failed(a2, "why")
    b1.settle("completed")
    ledger.done(b1)
    ledger.failed(b2, "why")
    assert due(ledger) == [("a2", "retry"), ("b2", "failed")]


def test_a_failure_behind_what_is_still_open_gives_back_only_what_is_behind_it() -> None:
    a1, a2, a3 = batch("a1", "a2", "a3")
    ledger = Ledger([a1, a2, a3])
    ledger.failed(a2, "cannot be read")
    assert ledger.is_open(a1) and not ledger.is_open(a3)
    ledger.done(a1)
    ledger.give_back()
    assert due(ledger) == [("a1", "completed"), ("a2", "failed"), ("a3", "retry")]


def test_a_message_reported_as_failed_is_not_given_back() -> None:
    a1, a2, a3 = batch("a1", "a2", "a3")
    ledger = Ledger([a1, a2, a3])
    ledger.failed(a2, "cannot be read")
    ledger.all_failed([a1], "why")
    ledger.give_back()
    assert sorted(due(ledger)) == [("a1", "failed"), ("a2", "failed"), ("a3", "retry")]


def test_what_is_given_back_begins_behind_what_a_handler_has_acknowledged() -> None:
    a1, a2, a3, a4 = batch("a1", "a2", "a3", "a4")
    ledger = Ledger([a1, a2, a3, a4])
    a2.settle("completed")
    ledger.give_back()
    assert due(ledger) == [("a3", "retry")]


def test_an_acknowledgement_of_a_handler_speaks_for_those_before_it() -> None:
    a1, a2, a3, b1, b2 = messages = batch("a1", "a2", "a3", "b1", "b2")
    a3.settle("completed", released=True)
    b1.settle("dlq", dead_letter=True)
    ledger = Ledger(messages)
    ledger.all_failed(messages, "why")
    assert due(ledger) == [("b2", "failed")]


def test_unsent_acknowledgements_stay_due_unless_outdated() -> None:
    a1, a2, b1 = batch("a1", "a2", "b1")
    ledger = Ledger([a1, a2, b1])
    ledger.done(a1)
    ledger.failed(b1, "why")
    acks = ledger.take()
    ledger.done(a2)
    ledger.put_back(acks)
    assert due(ledger) == [("a2", "completed"), ("b1", "failed")]


def test_where_the_broker_refuses_an_acknowledgement_nothing_more_is_handled() -> None:
    a1, a2, b1 = batch("a1", "a2", "b1")
    ledger = Ledger([a1, a2, b1])
    ledger.done(a1)
    ledger.take()
    ledger.refused(a1)
    assert not ledger.is_open(a2) and ledger.is_open(b1)
    # If the lease was not the reason, the rest becomes free then.
    assert due(ledger) == [("a2", "retry")]
