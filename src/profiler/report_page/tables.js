// Tables that sort, what was alive at the peak, and the gaps.
'use strict';

/// columns: {title, value(row) to sort by, text(row) or node, words: of text}. Sorted by the column `by`, the most first.
function sortedTable(rows, columns, by, most = 25) {
  const body = h('tbody'), heads = [], more = h('button', {type: 'button', class: 'more'});
  let column = by, down = true, shown = most;
  const fill = () => {
    const value = columns[column].value, sign = down ? -1 : 1;
    const sorted = [...rows].sort((a, b) => {
      const left = value(a), right = value(b);
      return sign * (typeof left === 'string' ? left.localeCompare(right) : left - right);
    });
    body.replaceChildren(...sorted.slice(0, shown).map((row) => h('tr', null, ...columns.map((each) => h('td', {class: each.words ? 'words' : null, title: each.words ? each.value(row) : null}, each.text(row))))));
    heads.forEach((head, at) => head.setAttribute('aria-sort', at !== column ? 'none' : down ? 'descending' : 'ascending'));
    more.hidden = sorted.length <= shown;
    more.textContent = 'Show all ' + count(sorted.length);
  };
  columns.forEach((each, at) => heads.push(h('th', {class: each.words ? 'words' : null, scope: 'col'}, h('button', {type: 'button', onclick: () => {
    down = at === column ? !down : !each.words;
    column = at;
    fill();
  }}, each.title))));
  more.addEventListener('click', () => { shown = rows.length; fill(); });
  fill();
  return [h('div', {class: 'scroll', tabindex: 0, role: 'group', 'aria-label': 'Table'}, h('table', null, h('thead', null, h('tr', null, ...heads)), body)), more];
}

/// Rows as report.cpp writes them.
const Column = {kernel: 0, op: 1, device: 2, calls: 3, seconds: 4, share: 5, least: 6, median: 7, most: 8, bandwidth: 9, rate: 10, roof: 11, modules: 12, moduleCount: 13};
const gigabytes = (value) => scaled(value, ['B/s', 'kB/s', 'MB/s', 'GB/s', 'TB/s'], 1000);
const rates = (value) => scaled(value, ['FLOP/s', 'kFLOP/s', 'MFLOP/s', 'GFLOP/s', 'TFLOP/s', 'PFLOP/s'], 1000);

/// The module that took most; of several, all of them with their times in a row that opens.
function modulesOf(row, texts) {
  const list = row[Column.modules], others = row[Column.moduleCount] - list.length / 2, name = (at) => shortName(texts[list[at]]) || '(outside)';
  if (list.length <= 2) return list.length ? shortName(texts[list[0]]) : '';
  const all = h('ul', {class: 'modules'});
  for (let at = 0; at < list.length; at += 2) all.append(h('li', {title: texts[list[at]]}, h('span', {class: 'soft'}, seconds(list[at + 1])), ' ' + name(at)));
  if (others) all.append(h('li', {class: 'soft'}, plural(others, 'other')));
  return h('details', null, h('summary', null, h('span', null, name(0)), ' +' + count(row[Column.moduleCount] - 1)), all);
}

function tablePanel(report, id, title, rows, timeline) {
  if (!rows.length) {
    if (id === 'operators') panel(id, title, null, h('p', {class: 'soft'}, 'No operator or kernel was recorded.'));
    return;
  }
  const texts = report.texts, of = (key) => (row) => row[Column[key]], text = (key) => (row) => texts[row[Column[key]]];
  const has = (key) => rows.some((row) => row[Column[key]] > 0), first = id === 'operators' ? 'op' : 'kernel', second = first === 'op' ? 'kernel' : 'op';
  const words = (name, key) => ({title: name, words: true, value: text(key), text: (row) => shortName(text(key)(row))});
  const number = (name, key, format) => ({title: name, value: of(key), text: (row) => (row[Column[key]] ? format(row[Column[key]]) : '–')});
  const named = (row) => texts[row[Column[first]]] || texts[row[Column[second]]] || '(not known)';
  const columns = [
    {title: first === 'op' ? 'Operator' : 'Kernel', words: true, value: named,
      text: (row) => h('button', {type: 'button', class: 'name code', title: named(row) + ': find it in the timeline', onclick: () => timeline && timeline.find(named(row))}, shortName(named(row)))},
    {title: 'Time', value: of('seconds'), text: (row) => seconds(row[Column.seconds])},
    {title: 'Share', value: of('share'), text: (row) => {
      const cell = document.createDocumentFragment();
      cell.append(percent(row[Column.share]), h('span', {class: 'share', 'aria-hidden': true}, h('i', {style: `width:${(row[Column.share] * 100).toFixed(1)}%`})));
      return cell;
    }},
    {title: 'Calls', value: of('calls'), text: (row) => count(row[Column.calls])},
    {title: 'Median', value: of('median'), text: (row) => seconds(row[Column.median])},
    {title: 'Most', value: of('most'), text: (row) => seconds(row[Column.most])},
  ];
  if (has('bandwidth')) columns.push(number('Memory', 'bandwidth', gigabytes));
  if (has('rate')) columns.push(number('Arithmetic', 'rate', rates));
  if (has('roof')) columns.push(number('Of its roof', 'roof', percent));
  if (rows.some((row) => texts[row[Column[second]]])) columns.push(words(second === 'op' ? 'Operator' : 'Kernel', second));
  if (new Set(rows.map(of('device'))).size > 1) columns.push({title: 'Device', value: of('device'), text: (row) => (row[Column.device] < 0 ? 'host' : String(row[Column.device]))});
  const firstModule = (row) => texts[row[Column.modules][0]] || '';
  if (rows.some(firstModule)) columns.push({title: 'Module', words: true, value: firstModule, text: (row) => modulesOf(row, texts)});
  panel(id, title, plural(rows.length, 'row') + '; a click on a head sorts', ...sortedTable(rows, columns, 1));
}

/// What was alive at the peak: [name, bytes, blocks].
function aliveTable(title, rows, total) {
  const line = ([name, size, blocks]) => h('tr', null, h('td', null, h('span', {class: 'name', title: name}, name)), h('td', null, bytes(size)),
    h('td', null, total ? percent(size / total) : '–'), h('td', null, blocks ? count(blocks) : '–'));
  const head = (text) => h('th', {class: 'plain', scope: 'col'}, text);
  return h('div', null, h('h3', null, title), h('div', {class: 'scroll', tabindex: 0, role: 'group', 'aria-label': title},
    h('table', null, h('thead', null, h('tr', null, head('What'), head('Size'), head('Share'), head('Blocks'))), h('tbody', null, ...rows.map(line)))));
}

function gapsPanel(report, timeline) {
  if (!report.gaps.length) {
    if (report.timeline.lanes.some(([device]) => device >= 0))
      panel('gaps', 'Host gaps', null, h('p', {class: 'soft'}, 'None: kernels follow each other within a microsecond.'));
    return;
  }
  const most = 6, list = h('ol', {class: 'gaps'});
  const line = (gap) => h('li', null,
    h('span', {class: 'long'}, time(gap.end - gap.begin)),
    h('div', null,
      h('p', {class: 'soft'}, [gap.step + ', at ' + time(gap.begin), gap.before ? 'after ' + shortName(gap.before, true) : '', gap.after ? 'before ' + shortName(gap.after, true) : ''].filter(Boolean).join(', ')),
      h('ul', null, ...gap.host.map(([what, ns]) => h('li', null, h('span', {class: 'time soft'}, time(ns)), h('span', {class: 'code'}, what))))),
    h('button', {type: 'button', onclick: () => timeline && timeline.visit(gap.begin, gap.end)}, 'Show'));
  list.append(...report.gaps.slice(0, most).map(line));
  const more = h('button', {type: 'button', class: 'more', onclick: () => { list.append(...report.gaps.slice(most).map(line)); more.remove(); }}, 'Show all ' + report.gaps.length);
  panel('gaps', 'Host gaps', 'the longest times in a step without a kernel, and what the host did in them', list, report.gaps.length > most ? more : null);
}
