"""The questions that the page at `/` asks in three ways."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. Delays that visitors make do not change the answer.

    Attributes:
        id: What the page calls it by.
        title: What it asks, in words.
        first: The variable `$first`: how many there are to begin with.
        query: The same as GraphQL.
    """

    id: str
    title: str
    first: int
    query: str


QUESTIONS = [
    Question(
        "departures",
        "A day's departures from JFK, with airline, aircraft, weather and destination",
        100,
        """query Departures($first: Int!) {
  flights(origin: "JFK", day: 15, first: $first) {
    number
    scheduledDeparture
    airline { name }
    plane { manufacturer model }
    weather { temperature windSpeed }
    destination { name }
  }
}""",
    ),
    Question(
        "onward",
        "The same, and which flights each destination gets",
        100,
        """query Onward($first: Int!) {
  flights(origin: "JFK", day: 15, first: $first) {
    number
    airline { name }
    plane { model }
    weather { temperature }
    destination {
      name
      arrivals(first: 3) {
        number
        airline { name }
        plane { model }
      }
    }
  }
}""",
    ),
    Question(
        "aircraft",
        "The aircraft that left LaGuardia one day, and in what weather they fly where",
        50,
        """query Aircraft($first: Int!) {
  flights(origin: "LGA", day: 15, first: $first) {
    number
    plane {
      model
      seats
      flights(first: 5) {
        date
        destination { name }
        weather { temperature visibility }
      }
    }
  }
}""",
    ),
    Question(
        "deep",
        "Six levels down from Newark: its departures, their airlines, where those fly, and who else flies there",
        30,
        """query Deep($first: Int!) {
  airport(code: "EWR") {
    departures(first: $first) {
      airline {
        name
        flights(first: 4) {
          destination {
            name
            arrivals(first: 2) {
              plane { model }
            }
          }
        }
      }
    }
  }
}""",
    ),
]
