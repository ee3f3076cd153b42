"""Opens connections to a socket of its own and forgets to close them; and files, which it closes."""

import socket
import sys
import time


class Client:
    def __init__(self, address):
        self.address = address
        self.kept = []

    def fetch_order(self):
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex(self.address)
        self.kept.append(connection)

    def read_settings(self):
        with open("/etc/passwd") as file:
            return file.readline()


def main():
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(4096)
    client = Client(server.getsockname())
    print(server.getsockname()[1], flush=True)
    sys.stdin.readline()
    for _ in range(900):
        client.fetch_order()
        for _ in range(20):
            client.read_settings()
        time.sleep(0.05)


main()
