"""A shop with a leak: it keeps every order's receipt in a log, and never clears the log.

    python3 shop.py

It also has a small bounded cache, and produces much garbage, as services do.
"""

import json
import random
import time


class Receipt:
    def __init__(self, order):
        self.order = order
        self.lines = [f"{item} x {count}" for item, count in order.items()]


class Shop:
    def __init__(self):
        self.log = []
        self.cache = {}

    def handle(self, number):
        order = {f"item-{random.randrange(1000)}": random.randrange(1, 9) for _ in range(5)}
        page = self.render(order)
        self.remember(number, page)
        self.log_order(order)
        return len(page)

    def render(self, order):
        return json.dumps({"order": order, "html": "<p>" * random.randrange(100, 900)})

    def remember(self, number, page):
        self.cache[number % 500] = page

    def log_order(self, order):
        self.log.append(Receipt(order))


def main():
    shop = Shop()
    number = 0
    while True:
        for _ in range(20):
            number += 1
            shop.handle(number)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
