"""Joins two streams by a key: orders with their customers, whichever arrives first.

    netstack run netstack.examples.keyed_join:job -p orders=100000

    customers (by id) -\
                        join -> (by country) -> revenue -> (to one) -> countries
    orders (by customer) -/

What to look at: equal keys of both inputs go to the same subtask. `Join` stores the customer of a key, and the orders
that arrived before it, in keyed state. The revenue of orders without a customer goes to a side output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from netstack import CheckpointSettings, OperatorContext, Output, StreamEnvironment, StreamSettings

COUNTRIES: Final = ("Austria", "Brazil", "Chad", "Denmark", "Egypt")

Customer: TypeAlias = "list[int | str]"
"""[id, country]"""
Order: TypeAlias = "list[int]"
"""[customer's id, cents]"""
Revenue: TypeAlias = "list[str | int]"
"""[country, cents]"""


def customers(count: int) -> Iterable[Customer]:
    """Returns the customers with their countries."""
    return ([number, COUNTRIES[number % len(COUNTRIES)]] for number in range(count))


def orders(count: int, customers: int) -> Iterator[Order]:
    """Yields orders; one in a hundred has an unknown customer."""
    for number in range(count):
        yield [customers if number % 100 == 99 else number * 7 % customers, 100 + number % 900]


def customer_id(record: Customer | Order) -> int:
    """Returns the key of both inputs."""
    return int(record[0])


def country(revenue: Revenue) -> str:
    """Returns the key of the join's output."""
    return str(revenue[0])


class Join:
    """Joins an order with its customer, and emits the revenue of the customer's country."""

    def open(self, context: OperatorContext) -> None:
        """Gets the keyed states."""
        self.countries = context.keyed_state("countries", "")
        self.early = context.keyed_state("early", list)

    def process1(self, customer: Customer, out: Output) -> None:
        """Stores a customer, and emits the revenue of orders that arrived before."""
        number, home = int(customer[0]), str(customer[1])
        self.countries[number] = home
        for cents in self.early.pop(number, []):
            out.collect([home, cents])

    def process2(self, order: Order, out: Output) -> None:
        """Emits the revenue of an order, or stores the order until its customer arrives."""
        number, cents = order
        home = self.countries.get(number)
        if home:
            out.collect([home, cents])
        else:
            self.early[number].append(cents)

    def finish(self, out: Output) -> None:
        """Emits orders without a customer to the side output."""
        for cents in self.early.values():
            out.collect_to("unknown", ["nobody", sum(cents)])
        self.early.clear()


class Add:
    """Sums the revenue of each country, and emits the sums at the end."""

    def open(self, context: OperatorContext) -> None:
        """Gets the keyed state."""
        self.cents = context.keyed_state("cents", 0)

    def process(self, revenue: Revenue, out: Output) -> None:
        """Adds the revenue of one order."""
        self.cents[str(revenue[0])] += int(revenue[1])

    def finish(self, out: Output) -> None:
        """Emits all sums."""
        for name, cents in self.cents.items():
            out.collect([name, cents])


class Table:
    """Collects the revenue of each country."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def process(self, revenue: Revenue) -> None:
        """Adds the revenue of one country."""
        name, cents = str(revenue[0]), int(revenue[1])
        self.rows[name] = self.rows.get(name, 0) + cents

    def finish(self) -> dict[str, int]:
        """Returns the result of the job."""
        return dict(sorted(self.rows.items()))

    def snapshot(self) -> dict[str, int]:
        """Returns the rows received so far."""
        return dict(self.rows)

    def restore(self, states: list[dict[str, int]]) -> None:
        """Restores the rows."""
        for rows in states:
            self.rows |= rows


def job(orders: int = 20_000, customers: int = 500, parallelism: int = 2) -> StreamEnvironment:
    """Builds the job.

    Args:
        orders: number of orders.
        customers: number of customers.
        parallelism: parallelism of the join and the sums.
    """
    settings = StreamSettings(checkpoints=CheckpointSettings(interval_s=1.0, unaligned=True))
    joined = StreamEnvironment("keyed join", parallelism=parallelism, settings=settings)
    left = joined.source(f"{__name__}:customers", name="customers", count=customers).set_parallelism(1)
    right = joined.source(f"{__name__}:orders", name="orders", count=orders, customers=customers)
    revenue = left.key_by(customer_id).connect(right.set_parallelism(1).key_by(customer_id), Join, name="join")
    added = revenue.key_by(country).process(Add, name="revenue")
    added.union(revenue.side_output("unknown")).global_().sink(Table, name="countries").set_parallelism(1)
    return joined
