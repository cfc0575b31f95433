#!/usr/bin/env python3
"""Opens the profiler's pages in a headless Chromium, at 1280 and 390 pixels, light and dark, and looks for what is wrong.

    TESSERA_REPORT_PAGES=DIR build/test_profiler --gtest_filter='Report.*'
    tests/profiler/screenshots.py [--out DIR] [--browser chromium] DIR/*.html

A page fails if its console has an error, it asks for anything but itself, something leaves the viewport sideways, panels or the
texts of a chart overlap, a panel is empty, or it took longer than a second to be ready. The widgets are used once each, too.
With --out the pictures are kept. Needs nothing but Python and a browser.
"""
import argparse
import base64
import fcntl
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]
VIEWS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]
READY_MS = 1000

CHECKS = r"""
(() => {
  const wrong = [], wide = document.documentElement.clientWidth;
  const nameOf = (e) => e.tagName.toLowerCase() + (e.id ? '#' + e.id : e.classList.length ? '.' + [...e.classList].join('.') : '') +
    ' "' + (e.textContent || '').trim().slice(0, 30) + '"';
  const clips = (e) => { for (let up = e.parentElement; up; up = up.parentElement) if (getComputedStyle(up).overflowX !== 'visible' && up !== document.body && up !== document.documentElement) return true; return false; };
  if (document.scrollingElement.scrollWidth > wide) wrong.push('the page scrolls sideways: ' + document.scrollingElement.scrollWidth + ' of ' + wide);
  for (const e of document.body.querySelectorAll('*')) {
    const box = e.getBoundingClientRect();
    if (!box.width || !box.height || e.closest('[hidden]') || clips(e)) continue;
    if (box.right > wide + 1 || box.left < -1) wrong.push('leaves the viewport: ' + nameOf(e) + ', ' + Math.round(box.left) + ' to ' + Math.round(box.right));
  }
  const cross = (a, b, by) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > by && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > by;
  const panels = [...document.querySelectorAll('.panel')], blocks = [document.getElementById('top'), ...panels];
  blocks.forEach((a, i) => blocks.slice(i + 1).forEach((b) => { if (cross(a.getBoundingClientRect(), b.getBoundingClientRect(), 1)) wrong.push('overlap: ' + nameOf(a) + ' and ' + nameOf(b)); }));
  for (const panel of panels) for (const parent of [panel, ...panel.querySelectorAll('.head, .tools, .columns, li, .bars')]) {
    const children = [...parent.children].filter((e) => e.getClientRects().length && !e.matches('path, circle, rect, line, g'));
    children.forEach((a, i) => children.slice(i + 1).forEach((b) => { if (cross(a.getBoundingClientRect(), b.getBoundingClientRect(), 1)) wrong.push('overlap: ' + nameOf(a) + ' and ' + nameOf(b)); }));
  }
  for (const chart of document.querySelectorAll('svg')) {
    const texts = [...chart.querySelectorAll('text')], boxes = texts.map((e) => e.getBoundingClientRect());
    texts.forEach((a, i) => texts.slice(i + 1).forEach((b, k) => { if (cross(boxes[i], boxes[i + 1 + k], 2)) wrong.push('texts overlap: ' + nameOf(a) + ' and ' + nameOf(b)); }));
  }
  for (const name of document.querySelectorAll('#roofline text.halo')) for (const dot of document.querySelectorAll('#roofline circle'))
    if (cross(name.getBoundingClientRect(), dot.getBoundingClientRect(), 2)) { wrong.push('a name lies on a dot: ' + nameOf(name)); break; }
  if (!panels.length) wrong.push('no panel');
  const painted = (canvas) => {  // text and frames are grey, what they are about is not
    const all = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    for (let i = 0; i < all.length; i += 4) if (Math.max(all[i], all[i + 1], all[i + 2]) - Math.min(all[i], all[i + 1], all[i + 2]) > 25) return true;
    return false;
  };
  for (const panel of panels) {
    const body = [...panel.children].slice(1), text = body.map((e) => e.textContent.trim()).join(''), height = panel.getBoundingClientRect().height;
    const canvases = [...panel.querySelectorAll('canvas')], charts = [...panel.querySelectorAll('.chart')];
    if (!text && !canvases.length && !charts.length) wrong.push('empty: ' + nameOf(panel));
    if (height < 50) wrong.push('flat: ' + nameOf(panel));
    for (const canvas of canvases) if (!canvas.width || !painted(canvas)) wrong.push('nothing is drawn: ' + nameOf(panel));
    for (const chart of charts) if (!chart.querySelector('path, rect, circle, .stack i')) wrong.push('nothing is drawn: ' + nameOf(panel));
    for (const table of panel.querySelectorAll('table')) if (!table.tBodies[0].rows.length) wrong.push('no rows: ' + nameOf(panel));
  }
  const luminance = (text) => { const p = text.match(/[\d.]+/g).slice(0, 3).map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)); return 0.2126 * p[0] + 0.7152 * p[1] + 0.0722 * p[2]; };
  const ground = luminance(getComputedStyle(document.body).backgroundColor);
  for (const e of document.querySelectorAll('h1, h2, p, td, th, dt, dd, li, a, .soft')) {
    const ink = luminance(getComputedStyle(e).color), ratio = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
    if (e.textContent.trim() && ratio < 4.5) { wrong.push('contrast ' + ratio.toFixed(1) + ': ' + nameOf(e)); break; }
  }
  return wrong;
})()
"""

USE = r"""
(async () => {
  const wrong = [], frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const canvas = document.querySelector('#timeline canvas');
  const aBar = () => {  // the first row with a bar of a colour, and the closest place there to 40 % of its width
    const context = canvas.getContext('2d'), middle = canvas.width * 0.4, away = (x) => Math.abs(x - middle);
    for (let y = 50; y < canvas.height; ++y) {
      const pixels = context.getImageData(0, y, canvas.width, 1).data;
      const coloured = (x) => { const rgb = pixels.slice(4 * x, 4 * x + 3); return Math.max(...rgb) - Math.min(...rgb) > 25; };
      const found = [...Array(canvas.width).keys()].filter(coloured).sort((a, b) => away(a) - away(b));
      if (found.length) return [found[0], y + 2];
    }
    return [middle, 50];
  };
  if (canvas) {
    canvas.scrollIntoView({block: 'center', behavior: 'instant'});
    const picture = () => canvas.toDataURL(), before = picture(), box = canvas.getBoundingClientRect();
    const at = {clientX: box.left + box.width * 0.4, clientY: box.top + 50, bubbles: true, cancelable: true, pointerId: 1, pointerType: 'touch'};
    canvas.dispatchEvent(new WheelEvent('wheel', {...at, deltaY: -400}));
    await frame();
    const zoomed = picture();
    if (zoomed === before) wrong.push('the wheel does not zoom');
    canvas.dispatchEvent(new PointerEvent('pointerdown', at));
    canvas.dispatchEvent(new PointerEvent('pointermove', {...at, clientX: at.clientX - 60}));
    canvas.dispatchEvent(new PointerEvent('pointerup', {...at, clientX: at.clientX - 60}));
    await frame();
    const panned = picture();
    if (panned === zoomed) wrong.push('dragging does not pan');
    canvas.dispatchEvent(new PointerEvent('pointerdown', at));
    canvas.dispatchEvent(new PointerEvent('pointerdown', {...at, pointerId: 2, clientX: at.clientX + 40}));
    canvas.dispatchEvent(new PointerEvent('pointermove', {...at, pointerId: 2, clientX: at.clientX + 140}));
    for (const pointerId of [1, 2]) canvas.dispatchEvent(new PointerEvent('pointerup', {...at, pointerId}));
    await frame();
    const pinched = picture();
    if (pinched === panned) wrong.push('pinching does not zoom');
    for (const key of ['ArrowLeft', '-', '0']) canvas.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));
    await frame();
    if (picture() === pinched) wrong.push('the keyboard does not move');
    const [x, y] = aBar(), bar = {...at, clientX: box.left + x, clientY: box.top + y};  // a host that is ahead has none in the middle
    canvas.dispatchEvent(new PointerEvent('pointermove', {...bar, pointerType: 'mouse'}));
    canvas.dispatchEvent(new PointerEvent('pointerdown', bar));
    canvas.dispatchEvent(new PointerEvent('pointerup', bar));
    await frame();
    if (!document.querySelector('#timeline .details dl')) wrong.push('a tap does not select');
    const search = document.querySelector('#timeline input');
    search.value = 'a';
    search.dispatchEvent(new Event('input', {bubbles: true}));
    search.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true, cancelable: true}));
    await frame();
    if (!document.querySelector('#timeline .tools .soft').textContent) wrong.push('the search says nothing');
    search.value = '';
    search.dispatchEvent(new Event('input', {bubbles: true}));
    canvas.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true, cancelable: true}));
    canvas.dispatchEvent(new KeyboardEvent('keydown', {key: '0', bubbles: true, cancelable: true}));
    canvas.dispatchEvent(new PointerEvent('pointerleave', at));
  }
  for (const table of document.querySelectorAll('.panel table')) {
    const heads = [...table.querySelectorAll('thead button')];
    if (!heads.length || table.tBodies[0].rows.length < 2) continue;
    const order = () => [...table.tBodies[0].rows].map((row) => row.textContent).join('|'), before = order();
    heads[1].click();
    if (order() === before) wrong.push('a click on a head does not sort');
    for (const head of heads) head.click();
    heads[1].click();
  }
  for (const row of [...document.querySelectorAll('td details')].slice(0, 2)) {
    row.querySelector('summary').click();
    await frame();
    if (!row.open || row.querySelector('li').getBoundingClientRect().height < 5) wrong.push('a row does not open: ' + row.textContent.slice(0, 30));
  }
  for (const flame of document.querySelectorAll('.flame canvas')) {
    flame.scrollIntoView({block: 'center', behavior: 'instant'});
    const before = flame.toDataURL(), box = flame.getBoundingClientRect();
    flame.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown', bubbles: true, cancelable: true}));
    flame.dispatchEvent(new MouseEvent('click', {clientX: box.left + box.width * 0.3, clientY: box.top + 30, bubbles: true}));
    await frame();
    if (flame.closest('.panel').querySelectorAll('.crumbs button').length < 2) wrong.push('a click on a frame does not zoom');
    flame.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true, cancelable: true}));
    await frame();
    if (flame.toDataURL() !== before) wrong.push('Escape does not show all of a flame graph');
  }
  for (const button of document.querySelectorAll('.panel button.more')) if (!button.hidden) { button.click(); break; }
  const ground = getComputedStyle(document.body).backgroundColor;
  document.querySelector('button.theme').click();
  if (getComputedStyle(document.body).backgroundColor === ground) wrong.push('the theme does not change');
  document.querySelector('button.theme').click();
  await frame();
  return wrong;
})()
"""


class Browser:
    """Chromium, spoken to through a pair of pipes: messages of JSON, a zero byte after each."""

    def __init__(self, program):
        self.folder = tempfile.mkdtemp(prefix="screenshots-")
        to_read, self.write = os.pipe()
        self.read, to_write = os.pipe()
        high = [fcntl.fcntl(each, fcntl.F_DUPFD, 20) for each in (to_read, to_write)]  # 3 and 4 may be in use by now

        def connect():
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        options = ["--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
                   "--disable-dev-shm-usage", "--disable-background-networking", "--user-data-dir=" + self.folder]
        if os.geteuid() == 0:
            options.append("--no-sandbox")
        self.process = subprocess.Popen([program, *options, "about:blank"], preexec_fn=connect, pass_fds=(3, 4), start_new_session=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for each in (to_read, to_write, *high):
            os.close(each)
        self.rest, self.number, self.events = b"", 0, []

    def close(self):
        try:
            self.call("Browser.close")
            self.process.wait(10)
        except Exception:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def message(self, deadline):
        while b"\0" not in self.rest:
            if not select.select([self.read], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            chunk = os.read(self.read, 1 << 20)
            if not chunk:
                raise EOFError("the browser has ended")
            self.rest += chunk
        one, self.rest = self.rest.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, session=None, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if session:
            request["sessionId"] = session
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self.write, data):]
        deadline = time.monotonic() + 60
        while True:
            answer = self.message(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(method + ": " + answer["error"]["message"])
                return answer["result"]
            self.events.append(answer)


class Page:
    def __init__(self, browser, width, scheme):
        self.browser = browser
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.size(width, 900)
        if width < 600:
            self.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]).split("\n")[0])
        return answer["result"].get("value")

    def open(self, address):
        self.call("Page.navigate", url=address)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            ready = self.value("document.body ? document.body.dataset.ready || '' : ''")
            if ready:
                return float(ready)
            time.sleep(0.02)
        return None

    def troubles(self, address):
        """What the console and the network say."""
        out = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            method, what = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                details = what["exceptionDetails"]
                out.append("console: " + details.get("exception", {}).get("description", details["text"]).replace("\n", " ")[:200])
            elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "assert"):
                out.append("console: " + str([each.get("value") for each in what["args"]]))
            elif method == "Log.entryAdded" and what["entry"]["level"] == "error":
                out.append("console: " + what["entry"]["text"])
            elif method == "Network.requestWillBeSent":
                url = what["request"]["url"]
                if url.split("#")[0] != address and not url.startswith("data:"):
                    out.append("asks for " + url)
        return out

    def picture(self, file, width):
        height = self.value("Math.ceil(document.documentElement.getBoundingClientRect().height)")
        self.call("Runtime.evaluate", expression="scrollTo({top: 0, behavior: 'instant'})")
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                         clip={"x": 0, "y": 0, "width": width, "height": min(height, 12000), "scale": 1})["data"]
        file.write_bytes(base64.b64decode(data))

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)


def check(browser, file, width, scheme, folder):
    """What is wrong with the page in this view, and how long it took."""
    address = file.resolve().as_uri()
    page = Page(browser, width, scheme)
    ready = page.open(address)
    wrong = []
    if ready is None:
        wrong.append("never became ready")
    else:
        if ready > READY_MS:
            wrong.append(f"ready after {ready:.0f} ms")
        time.sleep(0.1)
        wrong += page.value(CHECKS)
        if folder:
            page.picture(folder / f"{file.stem}-{width}-{scheme}.png", width)
        wrong += page.value(USE)
        wrong += ["used: " + each for each in page.value(CHECKS)]
    wrong += page.troubles(address)
    page.close()
    return list(dict.fromkeys(wrong)), ready


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--out", type=pathlib.Path, help="keep the pictures here")
    parser.add_argument("--browser", default=os.environ.get("BROWSER") or next(filter(shutil.which, BROWSERS), None))
    options = parser.parse_args()
    if not options.browser or not shutil.which(options.browser):
        sys.exit("screenshots.py: no Chromium here: name one with --browser")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    for file in options.files:
        if not file.is_file():
            sys.exit(f"screenshots.py: no such file: {file}")
    browser, passed, failed = Browser(options.browser), 0, 0
    try:
        for file in options.files:
            for width, scheme in VIEWS:
                wrong, ready = check(browser, file, width, scheme, options.out)
                print(f"{'failed' if wrong else 'passed'}: {file.name}, {width} px, {scheme}" + (f", ready after {ready:.0f} ms" if ready else ""))
                for each in wrong[:12]:
                    print("    " + each)
                passed, failed = passed + (not wrong), failed + bool(wrong)
    finally:
        browser.close()
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
