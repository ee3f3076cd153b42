// SPDX-License-Identifier: GPL-2.0-or-later
// A Node.js program that leaks through an addon. What it calls is warmed up, so that it is compiled.
'use strict';

const path = require('path');
const sessions = require(path.join(process.argv[2], 'sessions.node'));

function addToCart(bytes) {
  sessions.keep(bytes);
}

function browse(bytes) {
  sessions.turnOver(bytes);
}

function checkout() {
  for (let i = 0; i < 23; i++)
    addToCart(601 + i);
  for (let i = 0; i < 101; i++)
    browse(53);
}

for (let i = 0; i < 2000; i++)
  checkout();
sessions.serve(() => checkout());
