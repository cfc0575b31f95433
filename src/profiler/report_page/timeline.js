// The timeline: one canvas, rows of host threads and of streams, drawn from columns of numbers.
'use strict';

const Row = {height: 17, gap: 1, head: 20, axis: 22};

/// The columns of the spans, and the rows in which they lie: those of a thread by how deep they are nested.
class Spans {
  constructor(report) {
    const packed = report.timeline;
    this.report = report;
    this.texts = report.texts;
    this.short = this.texts.map((text) => shortName(text));
    for (const key of ['kind', 'name', 'call', 'launch', 'owner']) this[key] = unpack(packed[key]);
    for (const key of ['begin', 'length', 'bytes']) this[key] = unpack(packed[key], Float64Array);
    this.count = this.kind.length;
    for (let i = 0; i < this.count; ++i) this.owner[i] = this.owner[i] === 0 ? -1 : i - this.owner[i];
    let first = 0;
    this.lanes = packed.lanes.map(([device, thread, count]) => {
      const lane = {title: laneTitle(report, device, thread, first === 0), device, open: true, rows: this.place(first, first + count)};
      first += count;
      return lane;
    });
  }

  /// Begins become absolute; spans go to the row below those that enclose them.
  place(first, last) {
    const rows = [], ends = [];
    let now = 0;
    for (let i = first; i < last; ++i) {
      now += this.begin[i];
      this.begin[i] = now;
      while (ends.length && ends[ends.length - 1] <= now) ends.pop();
      if (rows.length === ends.length) rows.push([]);
      rows[ends.length].push(i);
      ends.push(now + this.length[i]);
    }
    return rows.map((row) => Int32Array.from(row));
  }

  end(i) { return this.begin[i] + this.length[i]; }
  text(i) { return this.texts[this.name[i]]; }
  /// [op, shapes, attributes, kernel, path, source, FLOPs, bytes], or nothing.
  callOf(i) { return this.call[i] < 0 ? null : this.report.calls[this.call[i]]; }

  /// The spans on devices that an operator started.
  startedBy(i) {
    if (!this.started) {
      this.started = new Map();
      for (let k = 0; k < this.count; ++k) {
        if (this.owner[k] < 0 || this.kind[k] < 5) continue;
        const list = this.started.get(this.owner[k]);
        if (list) list.push(k); else this.started.set(this.owner[k], [k]);
      }
    }
    return this.started.get(i) || [];
  }

  describe(i) {
    const call = this.callOf(i), text = (at) => (call ? this.texts[call[at]] : '');
    const launch = this.launch[i] < 0 ? null : this.report.launches[this.launch[i]], started = this.startedBy(i);
    const onDevice = this.kind[i] >= 5;
    const work = call && (call[6] || call[7]) ? [call[6] ? flops(call[6]) : '', call[7] ? bytes(call[7]) : ''].filter(Boolean).join(', ') : '';
    return [
      ['time', time(this.length[i]) + ', from ' + time(this.begin[i])],
      ['operator', onDevice || text(0) !== this.text(i) ? text(0) : ''], ['module', text(4)], ['inputs', text(1)], ['attributes', text(2)],
      ['kernel', onDevice ? '' : text(3)], ['work', work], ['called at', text(5)],
      ['on devices', started.length ? time(started.reduce((sum, k) => sum + this.length[k], 0)) + ' in ' + plural(started.length, 'launch').replace('launchs', 'launches') : ''],
      ['moved', this.bytes[i] ? bytes(this.bytes[i]) + (this.length[i] ? ', ' + scaled(this.bytes[i] / this.length[i] * 1e9, ['B/s', 'kB/s', 'MB/s', 'GB/s', 'TB/s'], 1000) : '') : ''],
      ['grid', launch ? launch[0] + ', blocks of ' + launch[1] : ''],
      ['block', launch ? [launch[2] ? launch[2] + ' registers a thread' : '', launch[3] ? bytes(launch[3]) + ' shared' : '',
        launch[4] ? 'occupancy ' + percent(launch[4]) : ''].filter(Boolean).join(', ') : ''],
    ];
  }
}

function laneTitle(report, device, thread, first) {
  if (device >= 0) return deviceName(report, device) + ', stream ' + thread;
  return 'Host thread ' + thread + (first ? ', the busiest' : '');
}

class Timeline {
  constructor(report) {
    this.spans = new Spans(report);
    this.whole = Math.max(report.length, 1);
    this.from = 0;
    this.to = this.whole;
    this.selected = -1;
    this.hovered = -1;
    this.matches = null;
    this.pointers = new Map();
    this.fit = fitter();
    this.canvas = h('canvas', {tabindex: 0, role: 'application', 'aria-label': 'Timeline: arrow keys pan, plus and minus zoom, 0 shows all, n goes to the next match'});
    this.spacer = h('div');
    this.box = h('div', {class: 'lanes frame'}, this.canvas, this.spacer);
    this.details = h('div', {class: 'details', 'aria-live': 'polite'});
    this.listen();
  }

  // Where things are.
  layout() {
    let y = Row.axis;
    for (const lane of this.spans.lanes) {
      lane.y = y;
      y += Row.head + (lane.open ? lane.rows.length * (Row.height + Row.gap) : 0) + 4;
    }
    this.content = y;
    this.width = this.box.clientWidth;
    this.height = Math.max(120, Math.min(this.content, Math.round(innerHeight * 0.66)));
    this.box.style.height = this.height + 2 + 'px';
    this.spacer.style.height = this.content - this.height + 'px';
  }
  x(ns) { return (ns - this.from) * this.width / (this.to - this.from); }
  ns(x) { return this.from + x * (this.to - this.from) / this.width; }
  /// Index in the row of the first span that ends after that time: those of a row do not overlap.
  firstIn(row, ns) {
    let low = 0, high = row.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.spans.end(row[middle]) <= ns) low = middle + 1; else high = middle;
    }
    return low;
  }
  rowAt(y) {
    y += this.box.scrollTop;
    for (const lane of this.spans.lanes) {
      const below = y - lane.y;
      if (below < 0) return null;
      if (below < Row.head) return {lane, row: null};
      const at = Math.floor((below - Row.head) / (Row.height + Row.gap));
      if (lane.open && at < lane.rows.length) return {lane, row: lane.rows[at]};
    }
    return null;
  }
  spanAt(x, y) {
    const place = y < Row.axis ? null : this.rowAt(y);
    if (!place || !place.row) return -1;
    let best = -1, distance = 3;  // pixels: thin spans can be hit, too
    for (let k = Math.max(this.firstIn(place.row, this.ns(x)) - 1, 0), tried = 0; k < place.row.length && tried < 3; ++k, ++tried) {
      const i = place.row[k], left = this.x(this.spans.begin[i]), right = this.x(this.spans.end(i));
      const away = Math.max(left - x, x - right, 0);
      if (away < distance) { best = i; distance = away; }
    }
    return best;
  }
  /// Left, right and top of a span that may lie outside of what is seen.
  placeOf(i) {
    for (const lane of this.spans.lanes)
      for (let depth = 0; depth < lane.rows.length; ++depth) {
        const row = lane.rows[depth], k = this.firstIn(row, this.spans.begin[i]);
        for (let near = Math.max(k - 1, 0); near < Math.min(k + 2, row.length); ++near)
          if (row[near] === i) return {left: this.x(this.spans.begin[i]), right: this.x(this.spans.end(i)), lane,
            top: lane.y + Row.head + (lane.open ? depth * (Row.height + Row.gap) : -Row.head)};
      }
    return null;
  }

  // Moving.
  show(from, to) {
    const least = Math.min(100, this.whole), most = this.whole * 1.04, margin = this.whole * 0.02;
    let length = Math.min(Math.max(to - from, least), most);
    from = (from + to - length) / 2;
    from = Math.min(Math.max(from, -margin), this.whole + margin - length);
    this.from = from;
    this.to = from + length;
    this.redraw();
  }
  zoom(factor, x = this.width / 2) {
    const at = this.ns(x);
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }
  pan(share) { const by = (this.to - this.from) * share; this.show(this.from + by, this.to + by); }
  all() { this.show(0, this.whole); }
  /// Shows a piece of time, with a margin, and brings the timeline into sight.
  visit(begin, end) {
    const margin = (end - begin) * 0.6 + 50;
    this.show(begin - margin, end + margin);
    document.getElementById('timeline').scrollIntoView();
  }
  select(i, reveal = false) {
    this.selected = i;
    this.details.replaceChildren();
    if (i >= 0) this.details.append(h('b', null, this.spans.text(i)), ' ', kindNames[this.spans.kind[i]], terms(this.spans.describe(i)));
    else this.details.append(this.help);
    if (i >= 0 && reveal) {
      const length = Math.max(this.spans.length[i], 10) * 6, middle = this.spans.begin[i] + this.spans.length[i] / 2;
      if (this.spans.length[i] * this.width / (this.to - this.from) < 4) this.show(middle - length, middle + length);
      else if (this.x(middle) < 0 || this.x(middle) > this.width) this.show(middle - (this.to - this.from) / 2, middle + (this.to - this.from) / 2);
      const place = this.placeOf(i);
      if (place) {
        place.lane.open = true;
        if (place.top < this.box.scrollTop + 40 || place.top > this.box.scrollTop + this.height - 40) this.box.scrollTop = place.top - this.height / 2;
      }
    }
    this.redraw();
  }

  // Searching.
  search(text) {
    this.matches = null;
    this.match = -1;
    const wanted = text.trim().toLowerCase();
    if (wanted) {
      const hit = this.spans.texts.map((each) => each.toLowerCase().includes(wanted));
      const call = this.spans.report.calls.map((each) => hit[each[0]] || hit[each[4]] || hit[each[3]]);
      const flags = new Uint8Array(this.spans.count), list = [];
      for (let i = 0; i < flags.length; ++i)
        if (hit[this.spans.name[i]] || (this.spans.call[i] >= 0 && call[this.spans.call[i]])) { flags[i] = 1; list.push(i); }
      list.sort((a, b) => this.spans.begin[a] - this.spans.begin[b]);
      this.matches = {flags, list, total: list.reduce((sum, i) => sum + this.spans.length[i], 0)};
    }
    this.found.textContent = !this.matches ? '' : !this.matches.list.length ? 'none' : plural(this.matches.list.length, 'event') + ', ' + time(this.matches.total);
    this.redraw();
  }
  next(by) {
    const list = this.matches && this.matches.list;
    if (!list || !list.length) return;
    this.match = (this.match + by + list.length + (this.match < 0 && by < 0 ? 1 : 0)) % list.length;
    this.select(list[this.match], true);
  }
  find(text) {
    this.input.value = text;
    this.search(text);
    document.getElementById('timeline').scrollIntoView();
  }

  // Drawing.
  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }
  draw() {
    this.layout();
    const context = prepared(this.canvas, this.width, this.height), top = this.box.scrollTop;
    context.font = canvasFont;
    context.textBaseline = 'middle';
    context.fillStyle = theme.colors.ground;
    context.fillRect(0, 0, this.width, this.height);
    const ticks = this.ticks();
    context.fillStyle = theme.colors.line;
    for (const [x] of ticks) context.fillRect(x, Row.axis - 8, 1, this.height);
    for (const lane of this.spans.lanes) {
      this.drawHead(context, lane, lane.y - top);
      if (!lane.open) continue;
      lane.rows.forEach((row, depth) => {
        const y = lane.y + Row.head + depth * (Row.height + Row.gap) - top;
        if (y > -Row.height && y < this.height) this.drawRow(context, row, y);
      });
    }
    this.drawLinks(context, top);
    this.drawAxis(context, ticks);
  }
  drawHead(context, lane, y) {
    if (y < -Row.head || y > this.height) return;
    context.fillStyle = theme.colors.raised;
    context.fillRect(0, y, this.width, Row.head - 2);
    context.fillStyle = theme.colors.soft;
    const turn = lane.open ? [[6, 7], [14, 7], [10, 12]] : [[7, 5], [7, 13], [12, 9]];
    context.beginPath();
    turn.forEach(([dx, dy]) => context.lineTo(dx, y + dy));
    context.fill();
    context.fillStyle = theme.colors.text;
    context.fillText(this.fit(context, lane.title, this.width - 28), 20, y + 10);
  }
  /// Spans thinner than a pixel share it: one is drawn of those that begin in it, rather one that was searched for.
  drawRow(context, row, y) {
    const {begin, length, kind, name} = this.spans, scale = this.width / (this.to - this.from), flags = this.matches && this.matches.flags;
    let last = -1, lastFaded = false;
    for (let k = this.firstIn(row, this.from); k < row.length; ++k) {
      const i = row[k];
      if (begin[i] >= this.to) break;
      const left = (begin[i] - this.from) * scale, width = length[i] * scale, faded = flags !== null && flags[i] === 0;
      const pixel = Math.floor(left);
      if (width < 1 && pixel === last && (faded || !lastFaded)) continue;
      last = pixel;
      lastFaded = faded;
      context.globalAlpha = faded ? 0.22 : 1;
      context.fillStyle = theme.colors.kinds[kind[i]][name[i] % 3];
      if (width < 1) { context.fillRect(pixel, y, 1, Row.height); continue; }
      const x = Math.max(left, 0), right = Math.min(left + width, this.width);
      context.fillRect(x, y, Math.max(right - x - (width > 3 ? 0.7 : 0), 0.5), Row.height);
      if (right - x < 22) continue;
      context.fillStyle = theme.colors.text;
      context.fillText(this.fit(context, this.spans.short[name[i]], right - x - 7), x + 4, y + Row.height / 2 + 0.5);
    }
    context.globalAlpha = 1;
  }
  /// Outlines what is selected and pointed at, with lines to what it started or what started it.
  drawLinks(context, top) {
    for (const i of new Set([this.hovered, this.selected])) {
      const place = i < 0 ? null : this.placeOf(i);
      if (!place) continue;
      context.strokeStyle = i === this.selected ? theme.colors.mark : theme.colors.text;
      context.lineWidth = 1.5;
      const left = Math.max(place.left, -4), right = Math.min(place.right, this.width + 4), y = place.top - top;
      context.strokeRect(left, y + 0.5, Math.max(right - left - 1, 2), Row.height - 1);
      const others = this.spans.kind[i] >= 4 ? [this.spans.owner[i]] : this.spans.startedBy(i).slice(0, 40);
      context.lineWidth = 1;
      context.globalAlpha = 0.7;
      for (const other of others) {
        const end = other < 0 ? null : this.placeOf(other);
        if (!end) continue;
        const [from, to] = end.top > place.top ? [place, end] : [end, place];
        const x0 = (Math.max(from.left, 0) + Math.min(from.right, this.width)) / 2, y0 = from.top - top + Row.height, y1 = to.top - top;
        context.beginPath();
        context.moveTo(x0, y0);
        context.bezierCurveTo(x0, (y0 + y1) / 2, to.left + 1, (y0 + y1) / 2, to.left + 1, y1);
        context.stroke();
      }
      context.globalAlpha = 1;
    }
  }
  /// [x, label] of round times.
  ticks() {
    const least = (this.to - this.from) * 100 / this.width, power = 10 ** Math.floor(Math.log10(least)), out = [];
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least);
    const unit = step >= 1e9 ? 3 : step >= 1e6 ? 2 : step >= 1e3 ? 1 : 0, size = 1000 ** unit;
    const places = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
    for (let at = Math.ceil(Math.max(this.from, 0) / step) * step; at < this.to; at += step)
      out.push([Math.round(this.x(at)), (at / size).toFixed(places) + ' ' + ['ns', 'µs', 'ms', 's'][unit]]);
    return out;
  }
  /// Over the rows, which scroll below it.
  drawAxis(context, ticks) {
    context.fillStyle = theme.colors.ground;
    context.fillRect(0, 0, this.width, Row.axis - 2);
    for (const [x, label] of ticks) {
      context.fillStyle = theme.colors.line;
      context.fillRect(x, Row.axis - 8, 1, 8);
      context.fillStyle = theme.colors.soft;
      if (x + 6 + context.measureText(label).width < this.width) context.fillText(label, x + 4, 10);
    }
    context.fillStyle = theme.colors.line;
    context.fillRect(0, Row.axis - 2, this.width, 1);
  }

  // Listening.
  listen() {
    const canvas = this.canvas, local = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener('wheel', (event) => {
      event.preventDefault();
      const [x] = local(event), unit = event.deltaMode === 1 ? 16 : 1;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) * unit / this.width);
      else this.zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY * unit)) * (event.ctrlKey ? 0.01 : 0.003)), x);
      tip.hide();
    }, {passive: false});
    canvas.addEventListener('pointerdown', (event) => {
      this.pointers.set(event.pointerId, local(event));
      this.moved = this.pointers.size > 1;
      if (event.pointerType === 'mouse') canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener('pointermove', (event) => this.pointerMoved(event, local(event)));
    canvas.addEventListener('pointerup', (event) => {
      const tapped = this.pointers.delete(event.pointerId) && !this.moved && this.pointers.size === 0;
      canvas.classList.remove('dragging');
      if (tapped) this.tapped(...local(event));
    });
    canvas.addEventListener('pointercancel', (event) => this.pointers.delete(event.pointerId));
    canvas.addEventListener('pointerleave', () => { this.hovered = -1; tip.hide(); this.redraw(); });
    canvas.addEventListener('dblclick', (event) => {
      const i = this.spanAt(...local(event));
      if (i >= 0) this.show(this.spans.begin[i] - this.spans.length[i] * 0.05, this.spans.end(i) + this.spans.length[i] * 0.05);
    });
    canvas.addEventListener('keydown', (event) => this.keyed(event));
    this.box.addEventListener('scroll', () => this.redraw());
  }
  pointerMoved(event, [x, y]) {
    const before = this.pointers.get(event.pointerId);
    if (!before) { this.hover(event, x, y); return; }
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
    if (others.length) {  // two fingers: what is below each stays there
      const [other] = others, apart = Math.abs(before[0] - other[0]), now = Math.abs(x - other[0]);
      if (apart > 8 && now > 8) this.zoom(apart / now, other[0]);
      this.moved = true;
    } else {
      if (!this.moved && Math.hypot(x - before[0], y - before[1]) < 4) return;
      if (!this.moved) { this.moved = true; this.canvas.classList.add('dragging'); tip.hide(); }
      this.pan((before[0] - x) / this.width);
      if (event.pointerType === 'mouse') this.box.scrollTop += before[1] - y;
    }
    this.pointers.set(event.pointerId, [x, y]);
  }
  hover(event, x, y) {
    if (event.pointerType === 'touch') return;
    const i = this.spanAt(x, y);
    if (i !== this.hovered) { this.hovered = i; this.redraw(); }
    if (i < 0) tip.hide();
    else tip.show(event.clientX, event.clientY, h('b', null, this.spans.text(i)), ' ', h('span', {class: 'soft'}, kindNames[this.spans.kind[i]]), terms(this.spans.describe(i)));
  }
  tapped(x, y) {
    const place = y < Row.axis ? null : this.rowAt(y);
    if (place && !place.row) { place.lane.open = !place.lane.open; this.redraw(); return; }
    this.select(this.spanAt(x, y));
  }
  keyed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15), a: () => this.pan(-0.15), d: () => this.pan(0.15),
      '+': () => this.zoom(0.7), '=': () => this.zoom(0.7), w: () => this.zoom(0.7), '-': () => this.zoom(1 / 0.7), s: () => this.zoom(1 / 0.7),
      ArrowUp: () => { this.box.scrollTop -= 36; }, ArrowDown: () => { this.box.scrollTop += 36; },
      0: () => this.all(), Home: () => this.all(), n: () => this.next(1), N: () => this.next(-1), p: () => this.next(-1), Escape: () => this.select(-1),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  /// Search, buttons, the canvas, what is selected, and what the colours mean.
  elements() {
    this.found = h('span', {class: 'soft', 'aria-live': 'polite'});
    this.input = h('input', {type: 'search', placeholder: 'Search name, operator, module', 'aria-label': 'Search the timeline',
      oninput: () => this.search(this.input.value),
      onkeydown: (event) => { if (event.key === 'Enter') { event.preventDefault(); this.next(event.shiftKey ? -1 : 1); } }});
    const button = (text, label, action) => h('button', {type: 'button', 'aria-label': label, title: label, onclick: action}, text);
    const tools = h('div', {class: 'tools'}, this.input, button('‹', 'The match before', () => this.next(-1)), button('›', 'The next match', () => this.next(1)), this.found,
      h('span', {class: 'push'}), button('−', 'Zoom out', () => this.zoom(2)), button('+', 'Zoom in', () => this.zoom(0.5)), button('All', 'Show all of it', () => this.all()));
    const touch = matchMedia('(pointer: coarse)').matches || (navigator.maxTouchPoints > 0 && innerWidth < 700);
    this.help = touch ? 'Drag to pan, pinch to zoom, tap a bar for what it is.'
      : 'Wheel or + and − zoom, drag or arrow keys pan, a click selects, a double click zooms to a bar, n goes to the next match, 0 shows all.';
    this.details.append(this.help);
    const used = new Set(this.spans.kind);
    const legend = h('ul', {class: 'legend'}, ...kindNames.map((name, kind) => used.has(kind) ? h('li', null, h('i', {style: `background:var(--k${kind})`}), name) : null));
    return [tools, this.box, legend, this.details];
  }
}

function timelinePanel(report) {
  if (!report.timeline.lanes.length) {
    panel('timeline', 'Timeline', null, h('p', {class: 'soft'}, 'No events were recorded.'));
    return null;
  }
  const timeline = new Timeline(report), left = report.timeline.left_out;
  panel('timeline', 'Timeline', left ? 'the longest events; ' + count(left) + ' shorter ones are left out' : null, ...timeline.elements());
  drawnIn(timeline.box, () => timeline.draw());
  return timeline;
}
