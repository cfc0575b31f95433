// Flame graphs: what encloses hangs above what is in it, as wide as it took time. A click zooms.
'use strict';

class Flame {
  constructor(report, packed, label) {
    this.texts = report.texts;
    this.short = this.texts.map((text) => shortName(text));
    for (const key of ['name', 'kind', 'depth', 'calls']) this[key] = unpack(packed[key]);
    for (const key of ['total', 'device']) this[key] = unpack(packed[key], Float64Array);
    this.count = this.name.length;
    this.root = -1;
    this.hovered = -1;
    this.fit = fitter();
    this.place();
    this.canvas = h('canvas', {tabindex: 0, role: 'application', 'aria-label': label + ': arrow keys go to parents, children and siblings, Escape shows all'});
    this.crumbs = h('div', {class: 'crumbs'});
    this.details = h('div', {class: 'details', 'aria-live': 'polite'}, 'Click a frame to zoom to it.');
    this.box = h('div', {class: 'flame frame'}, this.canvas);
    this.listen();
    this.showCrumbs();
  }

  /// Where each frame begins, and whose child it is: parents come before their children.
  place() {
    this.left = new Float64Array(this.count);
    this.parent = new Int32Array(this.count);
    const next = [0], path = [];
    this.deepest = 0;
    for (let i = 0; i < this.count; ++i) {
      const depth = this.depth[i];
      path.length = next.length = depth + 1;
      this.parent[i] = depth ? path[depth - 1] : -1;
      path[depth] = i;
      this.left[i] = next[depth];
      next[depth] += this.total[i];
      next[depth + 1] = this.left[i];
      this.deepest = Math.max(this.deepest, depth);
    }
    this.whole = next[0];
  }

  range() { return this.root < 0 ? [0, this.whole] : [this.left[this.root], this.left[this.root] + this.total[this.root]]; }

  draw() {
    const width = this.box.clientWidth, high = 18, height = (this.deepest + 1) * (high + 1) + 2;
    const context = prepared(this.canvas, width, height), [from, to] = this.range(), scale = width / (to - from);
    context.font = canvasFont;
    context.textBaseline = 'middle';
    context.fillStyle = theme.colors.ground;
    context.fillRect(0, 0, width, height);
    const last = new Int32Array(this.deepest + 1).fill(-1);  // by depth: frames thinner than a pixel share it
    for (let i = 0; i < this.count; ++i) {
      const x0 = Math.max((this.left[i] - from) * scale, 0), x1 = Math.min((this.left[i] + this.total[i] - from) * scale, width);
      if (x1 <= x0 || (x1 - x0 < 1 && Math.floor(x0) === last[this.depth[i]])) continue;
      last[this.depth[i]] = Math.floor(x0);
      const y = 1 + this.depth[i] * (high + 1), above = this.root >= 0 && this.depth[i] < this.depth[this.root];
      context.globalAlpha = above ? 0.5 : 1;
      context.fillStyle = theme.colors.kinds[this.kind[i]][this.name[i] % 3];
      context.fillRect(x0, y, Math.max(x1 - x0 - (x1 - x0 > 3 ? 0.7 : 0), 1), high);
      context.globalAlpha = 1;
      context.fillStyle = theme.colors.text;
      if (x1 - x0 > 22) context.fillText(this.fit(context, this.short[this.name[i]], x1 - x0 - 7), x0 + 4, y + high / 2 + 0.5);
      if (i !== this.hovered) continue;
      context.strokeStyle = theme.colors.text;
      context.lineWidth = 1.5;
      context.strokeRect(x0 + 0.75, y + 0.75, Math.max(x1 - x0 - 1.5, 1), high - 1.5);
    }
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect(), [from, to] = this.range();
    const depth = Math.floor((event.clientY - box.top - 1) / 19), at = from + (event.clientX - box.left) * (to - from) / box.width;
    for (let i = 0; i < this.count; ++i)
      if (this.depth[i] === depth && this.left[i] <= at && at < this.left[i] + this.total[i]) return i;
    return -1;
  }

  describe(i) {
    return [['time', time(this.total[i]) + ', ' + percent(this.total[i] / this.whole)], ['calls', count(this.calls[i]) + ', ' + time(this.total[i] / Math.max(this.calls[i], 1)) + ' each'],
      ['on devices', this.device[i] ? time(this.device[i]) : '']];
  }

  zoom(i) {
    this.root = i;
    this.details.replaceChildren(...(i < 0 ? ['Click a frame to zoom to it.'] : [h('b', null, this.texts[this.name[i]]), ' ', kindNames[this.kind[i]], terms(this.describe(i))]));
    this.showCrumbs();
    this.draw();
  }
  showCrumbs() {
    const path = [];
    for (let i = this.root; i >= 0; i = this.parent[i]) path.unshift(i);
    const crumb = (text, i) => h('button', {type: 'button', onclick: () => this.zoom(i)}, text);
    this.crumbs.replaceChildren(crumb('all ' + time(this.whole), -1));
    for (const i of path) this.crumbs.append(h('span', null, '›'), crumb(this.texts[this.name[i]], i));
  }

  listen() {
    this.canvas.addEventListener('pointermove', (event) => {
      if (event.pointerType === 'touch') return;
      const i = this.at(event);
      if (i !== this.hovered) { this.hovered = i; this.draw(); }
      if (i < 0) tip.hide();
      else tip.show(event.clientX, event.clientY, h('b', null, this.texts[this.name[i]]), ' ', h('span', {class: 'soft'}, kindNames[this.kind[i]]), terms(this.describe(i)));
    });
    this.canvas.addEventListener('pointerleave', () => { this.hovered = -1; tip.hide(); this.draw(); });
    this.canvas.addEventListener('click', (event) => {
      const i = this.at(event);
      this.zoom(i === this.root ? -1 : i);
    });
    this.canvas.addEventListener('keydown', (event) => {
      const to = {ArrowDown: () => this.widest(this.root), ArrowUp: () => (this.root < 0 ? -1 : this.parent[this.root]), Escape: () => -1,
        ArrowRight: () => this.sibling(1), ArrowLeft: () => this.sibling(-1)}[event.key];
      if (!to) return;
      event.preventDefault();
      this.zoom(to());
    });
  }
  widest(parent) {
    let best = parent, most = -1;
    for (let i = 0; i < this.count; ++i) if (this.parent[i] === parent && this.total[i] > most) { best = i; most = this.total[i]; }
    return best;
  }
  sibling(by) {
    if (this.root < 0) return -1;
    const all = [];
    for (let i = 0; i < this.count; ++i) if (this.parent[i] === this.parent[this.root] && this.total[i] > 0) all.push(i);
    return all[Math.min(Math.max(all.indexOf(this.root) + by, 0), all.length - 1)];
  }
}

function flamePanel(report, id, title, note, packed) {
  const flame = new Flame(report, packed, title);
  if (!flame.count || !(flame.whole > 0)) return;  // the timeline says that nothing was recorded there
  panel(id, title, note, flame.crumbs, flame.box, flame.details);
  drawnIn(flame.box, () => flame.draw());
}
