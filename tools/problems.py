"""Arithmetic word problems with worked steps: the text that the bundled checkpoints learn.

Every problem is a pure function of a ``random.Random``: a story of one of a dozen kinds, with names, things and
wording drawn at random, and a worked answer that ends in ``The answer is N.``  Numbers stay small (two digits in the
text, three in results) so that a model of a few million parameters can do the sums; wording varies so that what comes
next is not always certain, which is what drafting has to cope with.

The split is by content: `is_held_out` hashes the question, so a training stream and the held-out file can never
share one, whatever their seeds.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

HELD_OUT_ONE_IN = 64  # share of all questions that training never sees


@dataclass(frozen=True)
class Problem:
    """A question in plain text, its worked solution, and the final answer as a decimal string."""

    question: str
    solution: str
    answer: str


SHE, HE = ("She", "her", "she"), ("He", "his", "he")
PEOPLE = [(n, SHE) for n in ("Maya", "Anna", "Lena", "Rosa", "Ines", "Nora", "Clara", "Sofia", "Emma", "Yuki")]
PEOPLE += [(n, HE) for n in ("Omar", "Ben", "Liam", "Hugo", "Tom", "Ravi", "Felix", "Paul", "Leo", "Max")]
THINGS = (
    "apples",
    "shells",
    "stamps",
    "marbles",
    "books",
    "coins",
    "cards",
    "pencils",
    "stickers",
    "buttons",
    "cookies",
    "flowers",
    "beads",
    "eggs",
    "balloons",
)
BOXES = ("boxes", "bags", "packs", "baskets", "trays", "jars")
PLACES = ("school", "park", "market", "library", "beach", "farm", "station", "museum")
RELATIVES = ("brother", "sister", "cousin", "friend", "neighbor", "teacher")
GOODS = (
    ("notebook", "notebooks"),
    ("pen", "pens"),
    ("ticket", "tickets"),
    ("cake", "cakes"),
    ("shirt", "shirts"),
    ("lamp", "lamps"),
    ("toy", "toys"),
    ("cup", "cups"),
)


def running_total(r: random.Random) -> Problem:
    """Things gained and lost, two to four times."""
    name, (pro, pos, low) = r.choice(PEOPLE)
    thing, total = r.choice(THINGS), r.randint(8, 60)
    story = [
        r.choice(
            (
                f"{name} has {total} {thing}.",
                f"{name} starts with {total} {thing}.",
                f"There are {total} {thing} in {name}'s room.",
            )
        )
    ]
    work = [r.choice((f"{name} starts with {total} {thing}.", f"At first there are {total} {thing}."))]
    for _ in range(r.randint(2, 4)):
        kind = r.choice(("gain", "lose", "double") if 4 < total <= 40 else ("gain", "lose") if total > 4 else ("gain",))
        if kind == "double":
            story.append(r.choice((f"Then the number of {thing} doubles.", f"{pro} doubles {pos} {thing}.")))
            new, why, sum_ = 2 * total, r.choice(("Doubling gives", "Twice that is")), f"{total} * 2"
        elif kind == "gain":
            n = r.randint(2, 39)
            how, why = r.choice((("finds", "finding"), ("buys", "buying"), ("gets", "getting"), ("wins", "winning")))
            story.append(
                r.choice(
                    (
                        f"{pro} {how} {n} more at the {r.choice(PLACES)}.",
                        f"Then {low} {how} {n} more.",
                        f"On the next day {low} {how} {n} more {thing}.",
                    )
                )
            )
            new, why, sum_ = total + n, r.choice((f"After {why} {n} more there are", f"{pro} {how} {n}, so")), f"{total} + {n}"
        else:
            n = r.randint(1, min(total - 1, 39))
            how, why = r.choice((("gives away", "giving away"), ("loses", "losing"), ("sells", "selling")))
            story.append(
                r.choice(
                    (
                        f"{pro} {how} {n} of them.",
                        f"Then {low} {how} {n} {thing}.",
                        f"{pro} {how} {n} on the way to the {r.choice(PLACES)}.",
                    )
                )
            )
            new, why, sum_ = total - n, r.choice((f"After {why} {n} there are", f"{pro} {how} {n}, so")), f"{total} - {n}"
        work.append(f"{why} {sum_} = {new}.")
        total = new
    ask = r.choice(
        (f"How many {thing} does {name} have now?", f"How many {thing} are there in the end?", f"How many {thing} are left?")
    )
    return _problem(story + [ask], work, total)


def shopping(r: random.Random) -> Problem:
    """Two kinds of goods at unit prices, and sometimes the change from a note."""
    name, (pro, pos, low) = r.choice(PEOPLE)
    (one, many), (one2, many2) = r.sample(GOODS, 2)
    n, p, n2, p2 = r.randint(2, 9), r.randint(2, 9), r.randint(2, 6), r.randint(2, 9)
    a, b = n * p, n2 * p2
    story = [
        r.choice(
            (
                f"{name} buys {n} {many} for {p} dollars each and {n2} {many2} for {p2} dollars each.",
                f"At the {r.choice(PLACES)} a {one} costs {p} dollars and a {one2} costs {p2} dollars. "
                f"{name} takes {n} {many} and {n2} {many2}.",
            )
        )
    ]
    work = [
        r.choice((f"The {many} cost {n} * {p} = {a} dollars.", f"{n} {many} cost {n} * {p} = {a} dollars.")),
        r.choice((f"The {many2} cost {n2} * {p2} = {b} dollars.", f"{n2} {many2} cost {n2} * {p2} = {b} dollars.")),
        r.choice((f"Together that is {a} + {b} = {a + b} dollars.", f"In total {low} pays {a} + {b} = {a + b} dollars.")),
    ]
    notes = [m for m in (20, 50, 100, 150) if m > a + b]
    if notes and r.random() < 0.5:
        note = notes[0]
        ask = r.choice(
            (f"{pro} pays with {note} dollars. How much change does {low} get?", f"How much is left of {pos} {note} dollars?")
        )
        work.append(
            r.choice(
                (
                    f"The change is {note} - {a + b} = {note - a - b} dollars.",
                    f"What is left is {note} - {a + b} = {note - a - b} dollars.",
                )
            )
        )
        return _problem(story + [ask], work, note - a - b)
    return _problem(story + [r.choice((f"How much does {low} pay?", f"How many dollars does {name} spend?"))], work, a + b)


def packing(r: random.Random) -> Problem:
    """Full boxes and loose ones, sometimes with some taken out again."""
    name, (pro, pos, low) = r.choice(PEOPLE)
    thing, box = r.choice(THINGS), r.choice(BOXES)
    n, each, loose = r.randint(2, 12), r.randint(2, 12), r.randint(1, 30)
    full = n * each
    story = [
        r.choice((f"{name} has {n} {box} with {each} {thing} in each.", f"{name} fills {n} {box} with {each} {thing} each.")),
        r.choice((f"{pro} also has {loose} loose {thing}.", f"Another {loose} {thing} lie on the table.")),
    ]
    work = [
        r.choice((f"The {box} hold {n} * {each} = {full} {thing}.", f"In the {box} there are {n} * {each} = {full} {thing}.")),
        r.choice(
            (
                f"With the loose ones that makes {full} + {loose} = {full + loose}.",
                f"Adding {loose} gives {full} + {loose} = {full + loose}.",
            )
        ),
    ]
    total = full + loose
    if r.random() < 0.5:
        gone, who = r.randint(1, min(total - 1, 39)), r.choice(RELATIVES)
        story.append(r.choice((f"{pro} gives {gone} to {pos} {who}.", f"{pos.capitalize()} {who} takes {gone} of them.")))
        work.append(
            r.choice(
                (
                    f"Without the {gone} there are {total} - {gone} = {total - gone}.",
                    f"The {who} has {gone}, so {total} - {gone} = {total - gone} are left.",
                )
            )
        )
        total -= gone
    return _problem(story + [r.choice((f"How many {thing} does {name} have?", f"How many {thing} are there now?"))], work, total)


def sharing(r: random.Random) -> Problem:
    """A heap put together and shared out equally."""
    name, (pro, pos, low) = r.choice(PEOPLE)
    thing, people, each = r.choice(THINGS), r.randint(2, 9), r.randint(3, 12)
    total = people * each
    first = r.randint(1, total - 1)
    who = r.choice(("friends", "children", "students", "cousins"))
    story = [
        f"{name} has {first} {thing} and {r.choice(('buys', 'finds', 'gets'))} {total - first} more.",
        r.choice((f"{pro} shares them equally among {people} {who}.", f"{people} {who} share them equally.")),
    ]
    work = [
        r.choice(
            (
                f"Together there are {first} + {total - first} = {total} {thing}.",
                f"{name} has {first} + {total - first} = {total} {thing} to share.",
            )
        ),
        r.choice(
            (
                f"Each of the {people} gets {total} / {people} = {each}.",
                f"Shared by {people}, that is {total} / {people} = {each} each.",
            )
        ),
    ]
    if r.random() < 0.4:
        eaten = r.randint(1, each - 1)
        story.append(f"Each of them {r.choice(('loses', 'uses', 'sells'))} {eaten}. How many {thing} does each one have left?")
        work.append(f"Then each has {each} - {eaten} = {each - eaten} left.")
        return _problem(story, work, each - eaten)
    return _problem(story + [f"How many {thing} does each one get?"], work, each)


def travel(r: random.Random) -> Problem:
    """Distance from speed and time, in two legs."""
    name, (pro, pos, low) = r.choice(PEOPLE)
    how, ride = r.choice((("rides", "bike"), ("drives", "car"), ("sails", "boat")))
    v, t, v2, t2 = r.randint(3, 12), r.randint(2, 6), r.randint(3, 12), r.randint(2, 6)
    a, b = v * t, v2 * t2
    story = [
        f"{name} {how} {pos} {ride} for {t} hours at {v} miles per hour.",
        r.choice(
            (
                f"After lunch {low} goes on for {t2} hours at {v2} miles per hour.",
                f"Then {low} {how} {t2} more hours at {v2} miles per hour.",
            )
        ),
    ]
    work = [
        r.choice((f"The first part is {v} * {t} = {a} miles.", f"First {low} covers {v} * {t} = {a} miles.")),
        r.choice((f"The second part is {v2} * {t2} = {b} miles.", f"Then {low} covers {v2} * {t2} = {b} miles.")),
    ]
    if a != b and r.random() < 0.35:
        big, small = max(a, b), min(a, b)
        work.append(f"The difference is {big} - {small} = {big - small} miles.")
        return _problem(story + ["How many miles longer is the longer part?"], work, big - small)
    work.append(r.choice((f"In all that is {a} + {b} = {a + b} miles.", f"The whole way is {a} + {b} = {a + b} miles.")))
    return _problem(story + [r.choice((f"How far does {name} go?", "How many miles is the whole way?"))], work, a + b)


def ages(r: random.Random) -> Problem:
    """Ages of three people, now or in some years."""
    (n1, _), (n2, _), (n3, _) = r.sample(PEOPLE, 3)
    a, d, m, later = r.randint(4, 15), r.randint(2, 20), r.randint(2, 4), r.randint(2, 12)
    b, c = a + d, a * m
    story = [
        f"{n1} is {a} years old.",
        r.choice((f"{n2} is {d} years older than {n1}.", f"{n2} is older than {n1} by {d} years.")),
        f"{n3} is {m} times as old as {n1}.",
    ]
    work = [f"{n2} is {a} + {d} = {b} years old.", f"{n3} is {a} * {m} = {c} years old."]
    if r.random() < 0.5:
        who, age = r.choice(((n2, b), (n3, c)))
        work.append(f"In {later} years {who} will be {age} + {later} = {age + later}.")
        return _problem(story + [f"How old will {who} be in {later} years?"], work, age + later)
    work.append(f"Together {n2} and {n3} are {b} + {c} = {b + c}.")
    return _problem(story + [f"How old are {n2} and {n3} together?"], work, b + c)


def garden(r: random.Random) -> Problem:
    """Rows and columns, some of which fail."""
    name, (pro, pos, low) = r.choice(PEOPLE)
    plant = r.choice(("trees", "roses", "beans", "tulips", "carrots", "tomatoes"))
    rows, per = r.randint(3, 12), r.randint(3, 12)
    total = rows * per
    gone = r.randint(1, min(total - 1, 30))
    story = [
        r.choice(
            (f"{name} plants {rows} rows of {per} {plant}.", f"In {name}'s garden there are {rows} rows with {per} {plant} each.")
        ),
        r.choice((f"{gone} of them do not grow.", f"A storm breaks {gone} of them.", f"Rabbits eat {gone} of them.")),
    ]
    work = [
        r.choice((f"There are {rows} * {per} = {total} {plant}.", f"{name} plants {rows} * {per} = {total} {plant}.")),
        r.choice(
            (
                f"Of these {total} - {gone} = {total - gone} are left.",
                f"Taking away {gone} leaves {total} - {gone} = {total - gone}.",
            )
        ),
    ]
    total -= gone
    if r.random() < 0.4:
        more = r.randint(2, 30)
        story.append(f"Later {low} plants {more} more.")
        work.append(f"With {more} more there are {total} + {more} = {total + more}.")
        total += more
    return _problem(story + [r.choice((f"How many {plant} are there now?", f"How many {plant} does {name} have?"))], work, total)


def reading(r: random.Random) -> Problem:
    """Pages per day against the length of a book."""
    name, (pro, pos, low) = r.choice(PEOPLE)
    day, days, extra, left = r.randint(4, 12), r.randint(3, 12), r.randint(2, 20), r.randint(5, 50)
    a = day * days
    b = a + extra
    pages = b + left
    when = r.choice(("weekend", "holiday", "train ride"))
    story = [
        f"{name} reads a book of {pages} pages.",
        r.choice((f"{pro} reads {day} pages a day for {days} days.", f"For {days} days {low} reads {day} pages every day.")),
        f"On the {when} {low} reads {extra} more.",
    ]
    work = [
        r.choice((f"In {days} days {low} reads {day} * {days} = {a} pages.", f"The days give {day} * {days} = {a} pages.")),
        r.choice(
            (f"With the {when} it is {a} + {extra} = {b} pages.", f"Adding the {when}, {low} has read {a} + {extra} = {b} pages.")
        ),
    ]
    if r.random() < 0.6:
        work.append(
            r.choice(
                (
                    f"There remain {pages} - {b} = {left} pages.",
                    f"The book has {pages} pages, so {pages} - {b} = {left} are left.",
                )
            )
        )
        return _problem(
            story + [r.choice(("How many pages are left?", f"How many pages does {low} still have to read?"))], work, left
        )
    return _problem(story + [f"How many pages has {name} read?"], work, b)


def saving(r: random.Random) -> Problem:
    """Money earned by the week and spent."""
    name, (pro, pos, low) = r.choice(PEOPLE)
    start, week, weeks = r.randint(5, 40), r.randint(3, 12), r.randint(2, 10)
    earned = week * weeks
    total = start + earned
    cost = r.randint(2, min(total - 1, 80))
    good = r.choice(("game", "bike", "ball", "hat", "jacket", "watch"))
    story = [
        f"{name} has {start} dollars.",
        r.choice(
            (f"{pro} saves {week} dollars a week for {weeks} weeks.", f"Every week for {weeks} weeks {low} earns {week} dollars.")
        ),
        r.choice((f"Then {low} buys a {good} for {cost} dollars.", f"{pro} spends {cost} dollars on a {good}.")),
    ]
    work = [
        r.choice(
            (
                f"In {weeks} weeks that is {week} * {weeks} = {earned} dollars.",
                f"{pro} earns {week} * {weeks} = {earned} dollars.",
            )
        ),
        r.choice(
            (
                f"With the first {start} it makes {start} + {earned} = {total} dollars.",
                f"Then {low} has {start} + {earned} = {total} dollars.",
            )
        ),
        r.choice(
            (
                f"After paying {cost} there are {total} - {cost} = {total - cost} dollars.",
                f"Minus the price, {total} - {cost} = {total - cost} dollars remain.",
            )
        ),
    ]
    return _problem(
        story + [r.choice((f"How much money does {name} have now?", "How many dollars are left?"))], work, total - cost
    )


def comparing(r: random.Random) -> Problem:
    """One has so many times or so many more than another; the sum is asked."""
    (n1, _), (n2, _), (n3, _) = r.sample(PEOPLE, 3)
    thing, a = r.choice(THINGS), r.randint(4, 25)
    story, work = [f"{n1} has {a} {thing}."], []
    if r.random() < 0.5:
        m = r.randint(2, 4)
        b = a * m
        story.append(f"{n2} has {m} times as many.")
        work.append(f"{n2} has {a} * {m} = {b} {thing}.")
    else:
        m = r.randint(2, 30)
        b = a + m
        story.append(f"{n2} has {m} more than {n1}.")
        work.append(f"{n2} has {a} + {m} = {b} {thing}.")
    less = r.randint(1, b - 1)
    c = b - less
    story.append(r.choice((f"{n3} has {less} fewer than {n2}.", f"{n3} has {less} less than {n2}.")))
    work.append(f"{n3} has {b} - {less} = {c} {thing}.")
    who = r.choice((0, 1, 2))
    if who == 0:
        return _problem(story + [f"How many {thing} does {n3} have?"], work, c)
    x, y, m1, m2 = (a, c, n1, n3) if who == 1 else (b, c, n2, n3)
    work.append(r.choice((f"Together {m1} and {m2} have {x} + {y} = {x + y}.", f"The two have {x} + {y} = {x + y} together.")))
    return _problem(story + [f"How many {thing} do {m1} and {m2} have together?"], work, x + y)


def bus(r: random.Random) -> Problem:
    """People get on and off a bus or a train."""
    what = r.choice(("bus", "train", "ferry"))
    total = r.randint(10, 60)
    story, work = (
        [f"A {what} leaves the {r.choice(PLACES)} with {total} people."],
        [f"The {what} has {total} people at the start."],
    )
    for stop in ("first", "second", "third")[: r.randint(1, 3)]:
        off, on = r.randint(1, min(total - 1, 25)), r.randint(1, 25)
        story.append(
            r.choice(
                (
                    f"At the {stop} stop {off} get off and {on} get on.",
                    f"At the {stop} stop {on} people get on and {off} get off.",
                )
            )
        )
        mid = total - off
        work.append(
            r.choice(
                (
                    f"After the {stop} stop there are {total} - {off} = {mid} and {mid} + {on} = {mid + on}.",
                    f"The {stop} stop gives {total} - {off} = {mid}, then {mid} + {on} = {mid + on}.",
                )
            )
        )
        total = mid + on
    return _problem(
        story + [r.choice((f"How many people are on the {what} now?", f"How many people does the {what} carry in the end?"))],
        work,
        total,
    )


def baking(r: random.Random) -> Problem:
    """Batches baked, eaten and boxed."""
    name, (pro, pos, low) = r.choice(PEOPLE)
    thing = r.choice(("cookies", "muffins", "rolls", "pies"))
    box, boxes = r.randint(2, 9), r.randint(3, 12)
    left = box * boxes
    per = r.randint(3, 12)
    batches = left // per + r.randint(1, 3)
    made = per * batches
    eaten = made - left
    story = [
        r.choice(
            (f"{name} bakes {batches} batches of {per} {thing}.", f"{name} makes {per} {thing} in each of {batches} batches.")
        ),
        r.choice((f"The family eats {eaten} of them.", f"{pos.capitalize()} {r.choice(RELATIVES)} takes {eaten} of them.")),
        f"The rest go into boxes of {box}. How many boxes does {low} need?",
    ]
    work = [
        r.choice((f"{name} bakes {batches} * {per} = {made} {thing}.", f"There are {batches} * {per} = {made} {thing}.")),
        r.choice((f"After that {made} - {eaten} = {left} are left.", f"The rest is {made} - {eaten} = {left}.")),
        r.choice((f"They fill {left} / {box} = {boxes} boxes.", f"With {box} in a box that is {left} / {box} = {boxes} boxes.")),
    ]
    return _problem(story, work, boxes)


FAMILIES: tuple[Callable[[random.Random], Problem], ...] = (
    running_total,
    shopping,
    packing,
    sharing,
    travel,
    ages,
    garden,
    reading,
    saving,
    comparing,
    bus,
    baking,
)


def _problem(story: list[str], work: list[str], answer: int) -> Problem:
    return Problem(" ".join(story), "\n".join(work) + f"\nThe answer is {answer}.", str(answer))


def is_held_out(question: str) -> bool:
    """Whether a question belongs to the held-out side: one in `HELD_OUT_ONE_IN`, by its SHA-256."""
    return int.from_bytes(hashlib.sha256(question.encode()).digest()[:8], "big") % HELD_OUT_ONE_IN == 0


def problems(seed: int, *, held_out: bool = False) -> Iterator[Problem]:
    """An endless stream of problems from one side of the split, families in equal shares."""
    r = random.Random(seed)
    while True:
        problem = r.choice(FAMILIES)(r)
        if is_held_out(problem.question) == held_out:
            yield problem


def final_answer(text: str) -> str | None:
    """The number in the last ``The answer is N.`` of a text, or None where there is none."""
    found = re.findall(r"The answer is (-?\d+)\.", text)
    return found[-1] if found else None
