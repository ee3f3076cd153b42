// SPDX-License-Identifier: GPL-2.0-or-later
// A Node.js service that leaks in the way that it is told: `remember` is at fault, and `passing` is not.
'use strict';

const { Worker, isMainThread, workerData } = require('worker_threads');
const crypto = require('crypto');
const fs = require('fs');
const zlib = require('zlib');

const kept = [];
const orders = new Map();

const ways = {
  buffer: () => Buffer.allocUnsafeSlow(2003),
  zlib: () => zlib.createDeflate(),
  crypto: () => crypto.createHash('sha256').update('order'),
  fs: () => fs.opendirSync('/'),
};

class Sessions {
  remember(make) {
    kept.push(make());
  }
}

const sessions = new Sessions();

function handleRequest(make) {
  sessions.remember(make);
}

function passing(make) {
  return make() === null;
}

function tick(make, count) {
  for (let i = 0; i < count; i++) {
    handleRequest(make);
    passing(make);
  }
}

// Forces all tiers: it is compiled twice, and what it is compiled for changes in between.
function hot() {
  for (const make of [() => Buffer.allocUnsafeSlow(11), () => Buffer.allocUnsafeSlow(13).length])
    for (let i = 0; i < 30; i++) {
      tick(make, 1000);
      kept.length = 0;
    }
  tick(ways.buffer, 2000);
}

let sold = 0;
function order(garbage) {
  for (let i = 0; i < 300; i++)
    orders.set(sold++ % garbage, { id: sold, name: `order ${sold}`, items: [sold, sold + 1] });
}

function serve(way) {
  if (way === 'hot')
    setTimeout(hot, 3000);
  else if (way === 'map')
    setInterval(() => order(Infinity), 5);
  else if (way === 'healthy')
    setInterval(() => order(20000), 5);
  else
    setInterval(() => tick(ways[way], 1), 40);
}

const way = isMainThread ? process.argv[2] : workerData;
if (isMainThread) {
  // Work for the collector, so that closures and functions move.
  setInterval(() => Array.from({ length: 20000 }, (_, i) => () => i), 100);
  process.stdout.write('ready\n');
}
if (way === 'worker')
  new Worker(__filename, { workerData: 'buffer' });
else
  serve(way);
