// SPDX-License-Identifier: GPL-2.0-or-later
// A Node.js service that leaks in the way that it is told: `remember` is at fault, and `passing` is not.
'use strict';

const { Worker, isMainThread, workerData } = require('worker_threads');
const crypto = require('crypto');
const fs = require('fs');
const v8 = require('v8');
const vm = require('vm');
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
function order(count, garbage) {
  for (let i = 0; i < count; i++)
    orders.set(sold++ % garbage, { id: sold, name: `order ${sold}`, items: [sold, sold + 1] });
}

// For each line that it gets: collects, and says what V8 itself takes for the size of its heap then.
function measured() {
  v8.setFlagsFromString('--expose-gc');
  const collect = vm.runInNewContext('gc');
  process.stdin.on('data', () => {
    order(30000, Infinity);
    collect();
    process.stdout.write(`${process.memoryUsage().heapUsed}\n`);
  });
}

function serve(way) {
  if (way === 'hot')
    setTimeout(hot, 3000);
  else if (way === 'measured')
    measured();
  else if (way === 'map')
    setInterval(() => order(60, Infinity), 5);
  else if (way === 'healthy')
    setInterval(() => order(300, 20000), 5);
  else if (way === 'idle')
    setInterval(() => order(1, 1000), 5);
  else
    setInterval(() => tick(ways[way], 1), 40);
}

const way = isMainThread ? process.argv[2] : workerData;
if (isMainThread) {
  // Work for the collector, so that closures and functions move.
  if (way !== 'measured' && way !== 'idle')
    setInterval(() => Array.from({ length: 20000 }, (_, i) => () => i), 100);
  process.stdout.write('ready\n');
}
if (way === 'worker')
  new Worker(__filename, { workerData: 'buffer' });
else
  serve(way);
