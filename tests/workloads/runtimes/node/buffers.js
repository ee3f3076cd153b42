// A service that keeps a Buffer of each request: the leak is in Sessions.remember.
'use strict';

const kept = [];

class Sessions {
  remember(bytes) {
    kept.push(Buffer.allocUnsafeSlow(bytes));
  }
}

const sessions = new Sessions();

function handleRequest(bytes) {
  sessions.remember(bytes);
}

const passing = (bytes) => Buffer.allocUnsafeSlow(bytes).fill(1).length;

function tick() {
  for (let i = 0; i < 20; i++) {
    handleRequest(2003);
    passing(3001);
  }
}

console.log(process.pid);
setInterval(tick, 10);
