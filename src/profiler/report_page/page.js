// What every panel uses: elements, numbers for people, the data unpacked, the theme, the tooltip. start() fills the page.
'use strict';

/// An element: h('p', {class: 'soft', onclick: f}, 'text', child).
function h(tag, properties, ...children) {
  const out = document.createElement(tag);
  for (const [key, value] of Object.entries(properties || {})) {
    if (key.startsWith('on')) out.addEventListener(key.slice(2), value);
    else if (key === 'style') out.style.cssText = value;
    else if (value !== false && value != null) out.setAttribute(key, value === true ? '' : value);
  }
  out.append(...children.filter((child) => child != null && child !== ''));
  return out;
}
function s(tag, properties, ...children) {
  const out = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [key, value] of Object.entries(properties || {})) out.setAttribute(key, value);
  out.append(...children);
  return out;
}

// Numbers.
function digits(value, most = 3) {
  if (!isFinite(value)) return '–';
  const whole = Math.abs(value) >= 1 ? Math.floor(Math.log10(Math.abs(value))) + 1 : 1;
  return value.toFixed(Math.max(0, most - whole));
}
function scaled(value, units, base, most = 3) {
  let at = 0;
  while (at + 1 < units.length && Math.abs(value) >= base * 0.9995) { value /= base; ++at; }
  return (at === 0 && Number.isInteger(value) ? String(value) : digits(value, most)) + '\u00a0' + units[at];
}
/// Without zeros behind the point, for axes.
const round = (text) => text.replace(/(\.\d*?)0+(?=\u00a0)/, '$1').replace(/\.(?=\u00a0)/, '');
const time = (ns) => scaled(ns, ['ns', 'µs', 'ms', 's'], 1000);
const seconds = (value) => time(value * 1e9);
const bytes = (value) => scaled(value, ['B', 'KiB', 'MiB', 'GiB', 'TiB'], 1024);
const flops = (value) => scaled(value, ['FLOP', 'kFLOP', 'MFLOP', 'GFLOP', 'TFLOP', 'PFLOP'], 1000);
const percent = (share) => (share * 100 >= 99.95 || share === 0 ? (share * 100).toFixed(0) : digits(share * 100, 2)) + '\u00a0%';
const count = (value) => String(value).replace(/\B(?=(\d{3})+(?!\d))/g, '\u202f');
const plural = (value, word) => count(value) + ' ' + word + (value === 1 ? '' : 's');

/// A column as report.cpp packs it.
function unpack(base64, Type = Int32Array) {
  const packed = atob(base64), length = packed.length;
  let size = 0;
  for (let i = 0; i < length; ++i) if (packed.charCodeAt(i) < 128) ++size;
  const out = new Type(size);
  let value = 0, factor = 1, at = 0;
  for (let i = 0; i < length; ++i) {
    const byte = packed.charCodeAt(i);
    value += (byte & 127) * factor;
    if (byte >= 128) { factor *= 128; continue; }
    out[at++] = value % 2 === 0 ? value / 2 : -(value + 1) / 2;
    value = 0;
    factor = 1;
  }
  return out;
}

// The theme: the reader's system's, until the button says otherwise. Canvases are drawn anew.
const repaints = [];
const theme = {
  colors: {},
  set(name) {
    document.documentElement.dataset.theme = name;
    const style = getComputedStyle(document.documentElement);
    for (const key of ['ground', 'raised', 'line', 'strong-line', 'text', 'soft', 'accent', 'mark'])
      this.colors[key] = style.getPropertyValue('--' + key).trim();
    // Three tones of each kind, so that neighbours of one kind are told apart.
    this.colors.kinds = [0, 1, 2, 3, 4, 5, 6, 7].map((kind) => {
      const color = style.getPropertyValue('--k' + kind).trim();
      return [color, mixed(color, this.colors.ground, 0.2), mixed(color, this.colors.text, 0.13)];
    });
    for (const repaint of repaints) repaint();
  },
  toggle() { this.set(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'); },
};
function mixed(a, b, share) {
  const channel = (color, at) => parseInt(color.slice(at, at + 2), 16);
  const parts = [1, 3, 5].map((at) => Math.round(channel(a, at) * (1 - share) + channel(b, at) * share));
  return '#' + parts.map((part) => part.toString(16).padStart(2, '0')).join('');
}

/// "void a::f<bf16, 128>(Args)" without type, namespaces and parameters; with `bare` also without what it is instantiated for.
function shortName(name, bare = false) {
  const here = name.replace(/^void /, '').replace(/\(anonymous namespace\)::|\b[A-Za-z_]\w*::/g, '');
  const plain = here.replace(/\([^()]*\)( \[.*\])?$/, '') || here;
  return bare ? plain.replace(/<.*>/, '') || plain : plain;
}

const kindNames = ['step', 'range', 'module', 'operator', 'runtime', 'kernel', 'copy', 'fill'];
function deviceName(report, id) {
  const device = report.devices.find((each) => each.id === id);
  if (id < 0) return 'Host' + (device && device.name ? ' (' + device.name + ')' : '');
  return 'Device ' + id + (device && device.name ? ' (' + device.name + ')' : '');
}

const tip = {
  show(x, y, ...content) {
    const box = document.getElementById('tip');
    box.replaceChildren(...content);
    box.hidden = false;
    const size = box.getBoundingClientRect(), gap = 14;
    const left = x + gap + size.width > innerWidth - 8 ? Math.max(8, x - gap - size.width) : x + gap;
    const top = y + gap + size.height > innerHeight - 8 ? Math.max(8, y - gap - size.height) : y + gap;
    box.style.transform = `translate(${Math.round(Math.min(left, Math.max(8, innerWidth - 8 - size.width)))}px, ${Math.round(top)}px)`;
  },
  hide() { document.getElementById('tip').hidden = true; },
};
/// [[label, value], ...] as a list of terms; values that are empty are left out.
function terms(rows) {
  const list = h('dl');
  for (const [label, value] of rows) if (value !== '' && value != null) list.append(h('dt', null, label), h('dd', null, value));
  return list;
}

function panel(id, title, note, ...content) {
  const out = h('section', {class: 'panel', id, 'aria-labelledby': id + '-title'},
    h('div', {class: 'head'}, h('h2', {id: id + '-title'}, title), note ? h('p', null, note) : null), ...content);
  document.getElementById('panels').append(out);
  return out;
}

/// Sharp on screens of any density: the context of a canvas of that size in CSS pixels.
function prepared(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  const wide = Math.max(1, Math.round(width * ratio)), high = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.height = height + 'px';
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
const canvasFont = '11px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
/// Calls draw() now, when the element's width changes, and in another theme.
function drawnIn(element, draw) {
  let width = element.clientWidth;
  draw();
  new ResizeObserver(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    draw();
  }).observe(element);
  repaints.push(draw);
}

/// The start of a text that fits; its widths are measured once.
function fitter() {
  const widths = new Map();
  return (context, text, room) => {
    if (room < 16) return '';
    let width = widths.get(text);
    if (width === undefined) widths.set(text, width = context.measureText(text).width);
    if (width <= room) return text;
    let letters = Math.floor(text.length * (room - 9) / width);
    while (letters >= 2 && context.measureText(text.slice(0, letters) + '…').width > room) --letters;  // some letters are wide
    return letters < 2 ? '' : text.slice(0, letters) + '…';
  };
}

function headerOf(report) {
  const when = report.when ? new Date(report.when).toISOString().replace('T', ' ').slice(0, 19) + ' UTC' : '';
  const devices = report.devices.map((device) => device.name || deviceName(report, device.id)).join(', ');
  const steps = report.steps.filter((step) => /^ProfilerStep/.test(step.name)).length;
  const facts = [when, devices, steps ? plural(steps, 'step') : '', time(report.length) + ' recorded', plural(report.span_count, 'event'),
    report.process ? 'process ' + report.process : '', report.ranks > 1 ? 'rank ' + report.rank + ' of ' + report.ranks : ''];
  const notes = [...report.notes];
  if (report.dropped && !notes.some((note) => note.includes('dropped')))
    notes.push(plural(report.dropped, 'event') + ' dropped: there was no room for more');
  const top = document.getElementById('top');
  top.append(
    h('div', {class: 'title-row'}, h('h1', null, document.title),
      h('button', {class: 'theme', type: 'button', 'aria-label': 'Light or dark', title: 'Light or dark', onclick: () => theme.toggle()}, '◐')),
    h('p', {class: 'facts'}, facts.filter(Boolean).join(' · ')));
  if (notes.length) top.append(h('ul', {class: 'notes'}, ...notes.map((note) => h('li', null, note))));
  top.append(figuresOf(report));
}

function figuresOf(report) {
  const out = h('dl', {class: 'figures'});
  const figure = (label, value, small) => out.append(h('div', null, h('dt', null, label), h('dd', null, value, ' ', h('small', null, small || ''))));
  const total = report.steps.reduce((sum, step) => sum + step.seconds, 0), many = report.steps.length;
  if (many && total > 0) {
    const sum = (key) => report.steps.reduce((all, step) => all + step[key], 0) / total;
    figure(many === 1 ? 'Time' : 'Time of a step', seconds(total / many), many > 1 ? 'mean of ' + many : '');
    figure('Busy with kernels', percent(sum('busy')));
    figure('Idle', percent(sum('idle')));
  }
  const row = report.kernels[0];
  if (row) figure('Costliest kernel', percent(row[Column.share]), shortName(report.texts[row[Column.kernel]] || report.texts[row[Column.op]], true));
  const peak = report.memory[0] && report.memory[0].peak;
  if (peak) figure('Peak of memory', bytes(peak.allocated), peak.reserved ? 'of ' + bytes(peak.reserved) + ' reserved' : '');
  return out;
}

function advicePanel(report) {
  if (!report.advice.length) {
    panel('advice', 'Advice', null, h('p', {class: 'soft'}, report.span_count ? 'None: no rule found anything worth 2 % of a step.' : 'None: nothing was recorded.'));
    return;
  }
  panel('advice', 'Advice', 'by time to be won, of each step', h('ol', {class: 'advice'}, ...report.advice.map((item) => h('li', null,
    h('div', {class: 'win'}, seconds(item.seconds), h('small', null, item.at_most ? 'to ' + seconds(item.at_most) + ', ' + percent(item.share) : percent(item.share), ' of a step')),
    h('div', null, h('div', {class: 'rule'}, item.rule), h('p', null, item.what),
      h('p', {class: 'where code'}, [item.op, item.path, item.source].filter(Boolean).join(' · ')))))));
}

function start() {
  const report = JSON.parse(document.getElementById('data').textContent);
  const dark = matchMedia('(prefers-color-scheme: dark)');
  theme.set(dark.matches ? 'dark' : 'light');
  dark.addEventListener('change', (event) => theme.set(event.matches ? 'dark' : 'light'));
  headerOf(report);
  advicePanel(report);
  stepsPanel(report);
  const timeline = timelinePanel(report);
  tablePanel(report, 'operators', 'Operators', report.operators, timeline);
  tablePanel(report, 'kernels', 'Kernels', report.kernels, timeline);
  flamePanel(report, 'host-flame', 'Host time', 'by range, module and operator', report.host_flame);
  flamePanel(report, 'device-flame', 'Device time', 'by module, operator and kernel', report.device_flame);
  memoryPanel(report);
  rooflinePanel(report);
  gapsPanel(report, timeline);
  const links = [...document.querySelectorAll('.panel')].map((each) => h('a', {href: '#' + each.id}, each.querySelector('h2').textContent));
  document.getElementById('top').append(h('nav', {'aria-label': 'Panels'}, ...links));
  requestAnimationFrame(() => { document.body.dataset.ready = Math.ceil(performance.now()); });
}
