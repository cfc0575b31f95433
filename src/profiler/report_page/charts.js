// Charts: steps, memory, roofline; SVG, drawn anew at another width.
'use strict';

const legendOf = (entries) => h('ul', {class: 'legend'}, ...entries.map(([name, color, rule]) => h('li', null, h('i', {class: rule ? 'rule' : null, style: color ? `background:${color}` : ''}), name)));
/// Tooltip on pointing, on focus and on a tap.
function withTip(element, content) {
  const show = (event) => {
    const box = element.getBoundingClientRect(), at = event.clientX === undefined ? [box.right, box.bottom] : [event.clientX, event.clientY];
    tip.show(...at, ...content());
  };
  for (const name of ['pointermove', 'click', 'focus']) element.addEventListener(name, show);
  for (const name of ['pointerleave', 'blur']) element.addEventListener(name, () => tip.hide());
  return element;
}

// Steps.
const parts = [['busy', 'kernels', 'var(--busy)'], ['copies', 'copies and fills', 'var(--copies)'], ['idle', 'idle', 'var(--idle)']];
function stepsPanel(report) {
  const steps = report.steps.filter((step) => step.seconds > 0);
  if (!steps.length) return;
  const shown = parts.filter(([key]) => steps.some((step) => step[key] > 0));
  const chart = h('div', {class: 'chart'});
  panel('steps', 'Utilisation by step', steps.length > 1 ? 'what the busiest device did' : null, chart, legendOf(shown.map(([, name, color]) => [name, color])));
  if (steps.length <= 16) chart.append(stepBars(steps, shown));
  else drawnIn(chart, () => chart.replaceChildren(stepColumns(steps, shown, chart.clientWidth)));
}
function stepTip(step) {
  return [h('b', null, step.name), terms([['time', seconds(step.seconds)], ...parts.map(([key, name]) => [name, seconds(step[key]) + ', ' + percent(step[key] / step.seconds)]), ['operators on the host', seconds(step.host)]])];
}
function stepBars(steps, shown) {
  const longest = Math.max(...steps.map((step) => step.seconds)), out = h('div', {class: 'bars'});
  for (const step of steps) {
    out.append(h('div', {class: 'bar'}, h('span', {class: 'name', title: step.name}, step.name),
      withTip(h('div', {class: 'stack', style: `width:${100 * step.seconds / longest}%`}, ...shown.map(([key, , color]) => h('i', {style: `width:${100 * step[key] / step.seconds}%;background:${color}`}))), () => stepTip(step)),
      h('span', {class: 'soft'}, seconds(step.seconds) + ', ' + percent(step.busy / step.seconds) + ' busy')));
  }
  return out;
}
/// Many steps: columns, several steps in each where there is no room.
function stepColumns(steps, shown, width) {
  const left = 58, height = 170, room = width - left - 4, each = Math.max(1, Math.ceil(steps.length * 4 / room));
  const groups = [];
  for (let i = 0; i < steps.length; i += each) {
    const group = steps.slice(i, i + each), mean = (key) => group.reduce((sum, step) => sum + step[key], 0) / group.length;
    groups.push({name: group.length > 1 ? group[0].name + ' to ' + group[group.length - 1].name + ' (mean)' : group[0].name, seconds: mean('seconds'), busy: mean('busy'), copies: mean('copies'), idle: mean('idle'), host: mean('host')});
  }
  const top = Math.max(...groups.map((group) => group.seconds)), out = s('svg', {height: height + 24, role: 'img', 'aria-label': 'Utilisation by step'});
  for (const tick of niceTicks(top, 4)) {
    const y = height - (height - 12) * tick / top;
    out.append(s('line', {class: 'grid', x1: left, x2: width, y1: y, y2: y}), s('text', {x: left - 6, y: y + 4, 'text-anchor': 'end'}, round(seconds(tick))));
  }
  groups.forEach((group, at) => {
    const x = left + room * at / groups.length, wide = Math.max(room / groups.length - 1, 0.5), bar = s('g', {});
    let y = height;
    for (const [key, , color] of shown) {
      const high = (height - 12) * group[key] / top;
      y -= high;
      bar.append(s('rect', {x, y, width: wide, height: Math.max(high, 0), style: `fill:${color}`}));
    }
    out.append(withTip(bar, () => stepTip(group)));
  });
  out.append(s('text', {x: left, y: height + 16}, steps[0].name), s('text', {x: width - 4, y: height + 16, 'text-anchor': 'end'}, steps[steps.length - 1].name));
  return out;
}

/// Round numbers from 0 to `top`, at most `most` of them; with `base` 1024 round in powers of two.
function niceTicks(top, most, base = 10) {
  if (!(top > 0)) return [0];
  const least = top / most, out = [];
  let step;
  if (base === 10) {
    const power = 10 ** Math.floor(Math.log10(least));
    step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least * 0.999);
  } else {
    step = 2 ** Math.ceil(Math.log2(least));
  }
  for (let at = 0; at <= top * 1.0001; at += step) out.push(at);
  return out;
}

// Memory.
const memoryName = (name) => { const words = name.toLowerCase().replace(/_/g, ' '); return words.charAt(0).toUpperCase() + words.slice(1); };
function memoryPanel(report) {
  if (!report.memory.length) return;
  const body = h('div'), drawn = {memory: report.memory[0]};
  const switches = report.memory.length < 2 ? null : h('div', {class: 'tools'}, ...report.memory.map((memory) => h('button', {type: 'button', 'aria-pressed': memory === drawn.memory,
    onclick: (event) => {
      for (const other of event.target.parentElement.children) other.setAttribute('aria-pressed', other === event.target);
      drawn.memory = memory;
      fill();
    }}, deviceName(report, memory.device))));
  const chart = h('div', {class: 'chart'});
  const fill = () => {
    const memory = drawn.memory, series = memorySeries(memory);
    const draw = () => { if (drawn.memory === memory) chart.replaceChildren(memoryChart(memory, series, report.length, chart.clientWidth)); };
    const names = series.map((each) => [each.name, each.color]);
    if (memory.reserved.some((each) => each > 0)) names.push(['Reserved from the device', '', true]);
    body.replaceChildren(chart, legendOf(names), h('div', {class: 'columns'},
      aliveTable('Alive at the peak, by kind', memory.peak.kinds.map(([name, ...rest]) => [memoryName(name), ...rest]), memory.peak.allocated), aliveTable('Alive at the peak, by module', memory.peak.modules, memory.peak.allocated)));
    if (drawn.listening) draw(); else { drawn.listening = true; drawnIn(chart, () => chart.replaceChildren(memoryChart(drawn.memory, memorySeries(drawn.memory), report.length, chart.clientWidth))); }
  };
  panel('memory', 'Memory', report.memory.length < 2 ? deviceName(report, drawn.memory.device) : null, switches, body);
  fill();
}
/// From the bottom up; first what was not seen being allocated.
function memorySeries(memory) {
  const rest = memory.allocated.map((all, at) => Math.max(0, all - memory.kinds.reduce((sum, [, , column]) => sum + column[at], 0)));
  const out = memory.kinds.map(([kind, name, column]) => ({name: memoryName(name), color: `var(--c${kind})`, column}));
  if (rest.some((each) => each > 0)) out.unshift({name: 'Not seen: allocated before', color: 'var(--c8)', column: rest});
  return out;
}
/// On the axis of the timeline: all of the recording.
function memoryChart(memory, series, length, width) {
  const left = 62, top = 26, height = 250, right = width - 6, last = Math.max(length, 1);
  const most = Math.max(...memory.allocated, ...memory.reserved, 1), points = memory.at.length;
  const x = (at) => left + (right - left) * at / last, y = (size) => height - (height - top) * size / most;
  const out = s('svg', {height: height + 24, role: 'img', 'aria-label': 'Memory over time, by category; at most ' + bytes(memory.peak.allocated)});
  for (const tick of niceTicks(most, 4, 1024)) out.append(s('line', {class: 'grid', x1: left, x2: right, y1: y(tick), y2: y(tick)}), s('text', {x: left - 6, y: y(tick) + 4, 'text-anchor': 'end'}, round(bytes(tick))));
  const stairs = (column) => { let path = ''; for (let i = 0; i < points; ++i) path += (i ? 'H' + x(memory.at[i]).toFixed(1) + 'V' : 'M' + x(memory.at[i]).toFixed(1) + ' ') + y(column[i]).toFixed(1); return path + 'H' + right; };
  let below = new Array(points).fill(0);
  for (const each of series) {
    const above = below.map((size, at) => size + each.column[at]);
    let back = '';
    for (let i = points - 1; i >= 0; --i) back += 'V' + y(below[i]).toFixed(1) + 'H' + x(memory.at[i]).toFixed(1);
    out.append(s('path', {d: stairs(above) + back + 'Z', style: `fill:${each.color}`}));
    below = above;
  }
  if (memory.reserved.some((size) => size > 0)) out.append(s('path', {class: 'reserved', d: stairs(memory.reserved)}));
  const at = Math.min(Math.max(x(memory.peak.at), left), right), near = at > (left + right) / 2;
  out.append(s('line', {class: 'peak', x1: at, x2: at, y1: top - 6, y2: height}), s('circle', {class: 'peak-dot', cx: at, cy: y(memory.peak.allocated), r: 3.5}),
    s('text', {class: 'peak-text', x: at + (near ? -6 : 6), y: 14, 'text-anchor': near ? 'end' : 'start'}, 'Peak ' + bytes(memory.peak.allocated)));
  for (const tick of niceTicks(last, Math.max(2, Math.floor(width / 130)))) {
    if (x(tick) < right - 30) out.append(s('text', {x: x(tick), y: height + 17, 'text-anchor': tick ? 'middle' : 'start'}, round(time(tick))));
  }
  return withMemoryTip(out, memory, series, (px) => (px - left) / (right - left) * last);
}
function withMemoryTip(out, memory, series, timeAt) {
  const show = (event) => {
    const at = timeAt(event.clientX - out.getBoundingClientRect().left);
    let i = memory.at.findIndex((each) => each > at);
    i = i < 0 ? memory.at.length - 1 : Math.max(i - 1, 0);
    tip.show(event.clientX, event.clientY, h('b', null, 'At ' + time(memory.at[i])), terms([['allocated', bytes(memory.allocated[i])],
      ['reserved', memory.reserved[i] ? bytes(memory.reserved[i]) : ''], ...series.map((each) => [each.name, each.column[i] ? bytes(each.column[i]) : ''])]));
  };
  out.addEventListener('pointermove', show);
  out.addEventListener('click', show);
  out.addEventListener('pointerleave', () => tip.hide());
  return out;
}

// Roofline.
function rooflinePanel(report) {
  const rows = report.kernels.filter((row) => row[Column.rate] > 0 && row[Column.bandwidth] > 0).slice(0, 400);
  if (!rows.length) {
    if (report.kernels.length) panel('roofline', 'Roofline', null, h('p', {class: 'soft'}, 'No kernel has known FLOPs and bytes.'));
    return;
  }
  const devices = [...new Set(rows.map((row) => row[Column.device]))].sort((a, b) => b - a);
  const drawn = {device: rows[0][Column.device]}, chart = h('div', {class: 'chart'});
  const draw = () => chart.replaceChildren(rooflineChart(report, rows.filter((row) => row[Column.device] === drawn.device), report.devices.find((each) => each.id === drawn.device), chart.clientWidth));
  const switches = devices.length < 2 ? null : h('div', {class: 'tools'}, ...devices.map((device) => h('button', {type: 'button', 'aria-pressed': device === drawn.device, onclick: (event) => {
    for (const other of event.target.parentElement.children) other.setAttribute('aria-pressed', other === event.target);
    drawn.device = device;
    draw();
  }}, deviceName(report, device))));
  const known = report.devices.find((each) => each.id === drawn.device);
  panel('roofline', 'Roofline', 'a dot for each kernel of an operator, larger by time' + (known && known.bandwidth ? '; roofs as measured' : '; roofs were not measured'), switches, chart);
  drawnIn(chart, draw);
}
/// Roofs by rate, those that look the same joined: [[names, FLOP/s], ...].
function joinedRoofs(device) {
  const out = [];
  for (const [type, rate] of Object.entries(device ? device.roofs : {}).sort((a, b) => a[1] - b[1])) {
    const last = out[out.length - 1];
    if (last && rate / last[1] < 1.25) { last[0] += ', ' + type; last[1] = rate; } else out.push([type, rate]);
  }
  return out;
}
function rooflineChart(report, rows, device, width) {
  const left = 82, top = 12, height = 330, right = width - 10, roofs = joinedRoofs(device), bandwidth = device ? device.bandwidth : 0;
  const dots = rows.map((row) => ({row, x: row[Column.rate] / row[Column.bandwidth], y: row[Column.rate]}));
  const ridges = bandwidth ? roofs.map(([, rate]) => rate / bandwidth) : [];
  const decade = (values, round, by) => 10 ** (round(Math.log10(round === Math.floor ? Math.min(...values) : Math.max(...values))) + by);
  const xs = [...dots.map((dot) => dot.x), ...ridges], ys = [...dots.map((dot) => dot.y), ...roofs.map(([, rate]) => rate)];
  const x0 = decade(xs, Math.floor, 0), x1 = decade(xs, Math.ceil, ridges.length ? 1 : 0) * (xs.length === 1 ? 10 : 1), y0 = decade(ys, Math.floor, 0), y1 = Math.max(...ys) * 2;
  const x = (value) => left + (right - left) * Math.log(value / x0) / Math.log(x1 / x0), y = (value) => height - (height - top) * Math.log(value / y0) / Math.log(y1 / y0);
  const out = s('svg', {height: height + 40, role: 'img', 'aria-label': 'Roofline: FLOP/s over FLOP per byte'});
  const decadesX = Math.round(Math.log10(x1 / x0)), every = Math.ceil(decadesX * 46 / (right - left));
  for (let power = 0; power <= decadesX; ++power) {
    const at = x0 * 10 ** power;
    out.append(s('line', {class: 'grid', x1: x(at), x2: x(at), y1: top, y2: height}));
    if (power % every === 0) out.append(s('text', {x: Math.min(x(at), right - 8), y: height + 19, 'text-anchor': 'middle'}, plainPower(at)));
  }
  const decadesY = Math.floor(Math.log10(y1 / y0) + 1e-9), everyY = Math.ceil(decadesY * 18 / (height - top));
  for (let power = 0; power <= decadesY; ++power) {
    const at = y0 * 10 ** power;
    out.append(s('line', {class: 'grid', x1: left, x2: right, y1: y(at), y2: y(at)}));
    if (power % everyY === 0) out.append(s('text', {x: left - 6, y: y(at) + 4, 'text-anchor': 'end'}, round(rates(at))));
  }
  out.append(s('text', {x: (left + right) / 2, y: height + 36, 'text-anchor': 'middle'}, 'FLOP per byte'));
  const most = Math.max(...dots.map((dot) => dot.row[Column.share])) || 1, plot = {x, y, x0, y0, left, right, height};
  dots.sort((a, b) => b.row[Column.share] - a.row[Column.share]);
  for (const dot of dots) Object.assign(dot, {cx: x(dot.x), cy: y(dot.y), radius: 3.5 + 10 * Math.sqrt(dot.row[Column.share] / most)});
  const taken = dots.map(({cx, cy, radius}) => [cx - radius, cy - radius, cx + radius, cy + radius]);
  drawRoofs(out, roofs, bandwidth, plot, taken);
  drawDots(out, report, dots, plot, taken);
  return out;
}
const plainPower = (value) => (value >= 0.001 && value < 1e6 ? count(+value.toPrecision(1)) : value.toExponential(0));

const labelWidth = (text) => text.length * 6.4;
/// Of [text, x of its begin, baseline] the first that lies in the plot and on nothing that is taken, which it is then.
function placed(candidates, {left, right, height}, taken) {
  for (const [text, begin, base] of candidates) {
    const box = [begin, base - 10, begin + labelWidth(text), base + 3];
    if (box[0] < left || box[2] > right || box[1] < 0 || box[3] > height || taken.some((other) => crossing(box, other))) continue;
    taken.push(box);
    return s('text', {class: 'strong halo', x: begin, y: base}, text);
  }
  return null;
}

/// Lines of the roofs, and names for them: to the left of where a roof begins, where no dot is, or at its end.
function drawRoofs(out, roofs, bandwidth, plot, taken) {
  const {x, y, x0, y0, left, right} = plot, lines = roofs.map(([type, rate]) => ({type, rate, begin: bandwidth ? Math.max(x(rate / bandwidth), left) : left, level: y(rate)}));
  for (const {begin, level} of lines) {
    out.append(s('path', {class: 'roof', d: `M${begin.toFixed(1)} ${level.toFixed(1)}H${right}`}));
    taken.push([begin, level - 1, right, level + 1]);
  }
  const from = bandwidth ? Math.max(x0, y0 / bandwidth) : x0, to = roofs.length && bandwidth ? roofs[roofs.length - 1][1] / bandwidth : from * 1e3;
  const slope = (share) => [x(from * (to / from) ** share), y(from * (to / from) ** share * bandwidth)];
  if (bandwidth) {
    out.append(s('path', {class: 'roof', d: `M${slope(0).map((each) => each.toFixed(1)).join(' ')}L${slope(1).map((each) => each.toFixed(1)).join(' ')}`}));
    for (let share = 0; share <= 1; share += 0.005) taken.push([slope(share)[0] - 1, slope(share)[1] - 1, slope(share)[0] + 1, slope(share)[1] + 1]);
  }
  for (const {type, rate, begin, level} of lines.reverse()) {
    const long = type + ' ' + round(rates(rate)), candidates = [];
    for (const text of [long, long.replace('FLOP/s', ''), type]) {
      for (const away of [5, 20, 35, 50, 65]) candidates.push([text, begin - away - labelWidth(text), level - 4]);
      for (const base of [level - 5, level + 13]) candidates.push([text, right - labelWidth(text), base]);
    }
    out.append(placed(candidates, plot, taken) || '');
  }
  if (!bandwidth) return;
  const text = 'memory ' + round(gigabytes(bandwidth)), candidates = [];
  for (let share = 0.3; share < 0.95; share += 0.05) candidates.push([text, slope(share)[0] - 8 - labelWidth(text), slope(share)[1] - 5]);
  out.append(placed(candidates, plot, taken) || '');
}
const crossing = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
/// The dots, the large ones first; the costliest with their names, where there is room.
function drawDots(out, report, dots, plot, taken) {
  const names = new Map();
  for (const [at, {row, x: intensity, y: rate, cx, cy, radius}] of dots.entries()) {
    const op = report.texts[row[Column.op]], kernel = report.texts[row[Column.kernel]];
    out.append(withTip(s('circle', {class: 'dot', cx, cy, r: radius, tabindex: at < 20 ? 0 : -1}), () => [h('b', null, op || kernel), terms([['kernel', op ? kernel : ''],
      ['time', seconds(row[Column.seconds]) + ', ' + percent(row[Column.share])], ['arithmetic', rates(rate)], ['memory', gigabytes(row[Column.bandwidth])],
      ['intensity', digits(intensity) + ' FLOP per byte'], ['of its roof', row[Column.roof] ? percent(row[Column.roof]) : '']])]));
    const text = shortName(op || kernel, true), width = labelWidth(text);
    if (names.size >= 6 || names.has(text)) continue;
    const name = placed([[text, cx + radius + 4, cy + 4], [text, cx - radius - 5 - width, cy + 4], [text, cx - width / 2, cy + radius + 13], [text, cx - width / 2, cy - radius - 5]], plot, taken);
    if (name) names.set(text, name);
  }
  out.append(...names.values());
}
