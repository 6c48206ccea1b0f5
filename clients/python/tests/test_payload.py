"""Payloads: what can be pushed, and its type after a pop."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, Dict, List, Optional, Tuple, TypedDict, Union
from uuid import UUID

import pytest
from pydantic import BaseModel

from queen_client import BadUse, DecodeError
from queen_client.payload import decoder, encode


class Colour(Enum):
    RED = "red"


class Pet(BaseModel):
    name: str
    born: Optional[date] = None


class Line(TypedDict):
    article: str


@dataclass
class Address:
    street: str


@dataclass
class Customer:
    id: UUID
    name: str
    since: datetime
    credit: Decimal
    colour: Colour
    addresses: List[Address]
    pet: Optional[Pet] = None
    tags: Dict[str, int] = field(default_factory=dict)
    corner: Tuple[float, float] = (0.0, 0.0)
    either: Union[int, str] = 0


CUSTOMER = Customer(
    id=UUID("4bf92f35-77b3-4da6-a3ce-929d0e0e4736"),
    name="ada",
    since=datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=timezone.utc),
    credit=Decimal("10.50"),
    colour=Colour.RED,
    addresses=[Address("here"), Address("there")],
    pet=Pet(name="rex", born=date(2020, 1, 1)),
    tags={"vip": 1},
    corner=(1.0, 2.5),
    either="text",
)


def test_a_dataclass_comes_back_as_it_was() -> None:
    assert decoder(Customer)(json.loads(encode(CUSTOMER))) == CUSTOMER


def test_a_model_of_pydantic_comes_back_as_it_was() -> None:
    pet = Pet(name="rex", born=date(2020, 1, 1))
    assert json.loads(encode(pet)) == {"name": "rex", "born": "2020-01-01"}
    assert decoder(Pet)(json.loads(encode(pet))) == pet


@pytest.mark.parametrize("kind", [None, Any, object, dict, Dict[str, int], Line])
def test_a_dict_is_a_dict(kind: Any) -> None:
    assert decoder(kind)({"a": 1}) == {"a": 1}


def test_a_function_makes_what_it_wants() -> None:
    def total(payload: Any) -> int:
        return int(payload["total"]) * 2

    assert decoder(total)({"total": 21}) == 42


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Customer, {"name": "only"}),
        (Customer, ["no object"]),
        (Address, {"street": 7}),
        (Pet, {"born": "2020-01-01"}),
        (List[int], [1, "two"]),
        (int, True),
        (lambda payload: payload["missing"], {}),
    ],
)
def test_a_payload_that_does_not_fit_is_a_decode_error(kind: Any, payload: Any) -> None:
    with pytest.raises(DecodeError, match="the payload is not a valid"):
        decoder(kind)(payload)


def test_fields_that_a_dataclass_does_not_know_are_left_out() -> None:
    assert decoder(Address)({"street": "here", "added_later": 1}) == Address("here")


def test_text_is_written_as_it_is() -> None:
    assert encode({"ä": "🐝"}) == '{"ä":"🐝"}'.encode()


@pytest.mark.parametrize(
    "payload",
    [b"bytes", {1, 2}, object(), float("nan"), float("inf"), "\ud800", {("a",): 1}, {"deep": b"bytes"}],
)
def test_a_payload_that_is_not_json_is_rejected_before_sending(payload: Any) -> None:
    with pytest.raises(BadUse, match="JSON"):
        encode(payload)


def test_a_cyclic_payload_is_rejected_before_sending() -> None:
    endless: List[Any] = []
    endless.append(endless)
    with pytest.raises(BadUse):
        encode(endless)


def test_an_invalid_type_is_rejected_at_once() -> None:
    with pytest.raises(BadUse, match="type must be a pydantic model"):
        decoder("Customer")
