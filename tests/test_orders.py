"""Results that are kept for their next pages: found again by their cursor only, and not for ever."""

from __future__ import annotations

import pytest

from dsh_daemon import orders
from dsh_daemon.errors import CursorExpired
from dsh_daemon.orders import Order, Orders


def test_a_cursor_names_an_order_and_a_place_in_it() -> None:
    kept = Orders()
    order = Order("a search", [1, 2, 3], 8)
    name = kept.keep(order)

    assert kept.find(f"{name}-2", "a search") == (name, 2, order)


@pytest.mark.parametrize(
    "cursor", ["", "-", "{}", "{}-", "{}--1", "{}-x", "{}-1.5", "{}-\u0661", "{}-99999999999", "x-1"]
)
def test_what_is_no_cursor_is_expired(cursor: str) -> None:
    kept = Orders()
    name = kept.keep(Order("a search", [1, 2, 3], 8))

    with pytest.raises(CursorExpired):
        kept.find(cursor.format(name), "a search")


def test_a_cursor_belongs_to_the_search_that_it_was_made_for() -> None:
    kept = Orders()
    name = kept.keep(Order("a search", [1, 2, 3], 8))

    with pytest.raises(CursorExpired):
        kept.find(f"{name}-1", "another search")


def test_the_least_recently_used_order_is_forgotten_first() -> None:
    kept = Orders()
    names = [kept.keep(Order(n, [n], 8)) for n in range(orders.MOST)]
    kept.find(f"{names[0]}-1", 0)
    kept.keep(Order("one more", [1], 8))

    assert kept.find(f"{names[0]}-1", 0)[1] == 1
    with pytest.raises(CursorExpired):
        kept.find(f"{names[1]}-1", 1)


def test_large_orders_are_forgotten_sooner_and_the_last_one_is_kept_whatever_its_size() -> None:
    kept = Orders()
    first = kept.keep(Order("first", range(10), 8))
    huge = kept.keep(Order("huge", range(orders.BYTES), 8))

    assert kept.find(f"{huge}-1", "huge")[1] == 1
    with pytest.raises(CursorExpired):
        kept.find(f"{first}-1", "first")
