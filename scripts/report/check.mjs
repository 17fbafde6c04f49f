// Opens reports in Chromium as on a phone and on a desk, light and dark: no errors, nothing fetched,
// every chart drawn, no text over another, no page that must be scrolled sideways.
//
//   node check.mjs MODULES CHROMIUM SCREENSHOTS REPORT...
//
// MODULES is the folder with playwright-core; pictures go to SCREENSHOTS.
import { createRequire } from 'node:module';
import { basename, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const [modules, executablePath, pictures, ...reports] = process.argv.slice(2);
const { chromium } = createRequire(pathToFileURL(`${resolve(modules)}/`))('playwright-core');

const SIZES = { phone: { width: 390, height: 844 }, desk: { width: 1280, height: 900 } };
const problems = [];

// Runs in the page: what is wrong with it, as sentences.
function examine() {
  const wrong = [];
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) wrong.push(`the page is ${scrollWidth} wide in a window of ${clientWidth}`);
  const charts = [...document.querySelectorAll('.chart')];
  charts.forEach((chart, at) => {
    const name = `chart ${at} (${chart.parentElement.querySelector('figcaption').textContent})`;
    const svg = chart.querySelector('svg');
    if (!svg) {
      wrong.push(`${name} is not drawn`);
      return;
    }
    if (!chart.getAttribute('aria-label')) wrong.push(`${name} has no description`);
    const marks = svg.querySelectorAll('path, circle, rect, line, polygon').length;
    if (marks < 3) wrong.push(`${name} has ${marks} marks only`);
    if (!chart.parentElement.querySelector('.legend li')) wrong.push(`${name} has no legend`);
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].filter((text) => text.textContent.trim());
    if (texts.length === 0) wrong.push(`${name} has no text`);
    const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
    boxes.forEach(([text, box], n) => {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1) {
        wrong.push(`${name}: "${text}" is cut off`);
      }
      for (const [other, its] of boxes.slice(n + 1)) {
        const wide = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        const high = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        if (wide > 2 && high > 4) wrong.push(`${name}: "${text}" and "${other}" overlap`);
      }
    });
  });
  return { wrong, charts: charts.length };
}

// Runs in the page: what a reader misses outside of the charts, as sentences.
function read() {
  const wrong = [];
  // What is wider than its box can be moved by keys alone.
  for (const box of document.querySelectorAll('.scroll')) {
    box.focus();
    if (document.activeElement !== box) wrong.push(`"${box.ariaLabel}" takes no focus`);
    else if (getComputedStyle(box).outlineStyle === 'none') wrong.push(`"${box.ariaLabel}" does not show its focus`);
  }
  // Commands and short names are read whole, without moving anything.
  for (const code of document.querySelectorAll('.steps code')) {
    if (code.scrollWidth > code.clientWidth) wrong.push(`the command "${code.textContent}" is cut off`);
  }
  for (const cell of document.querySelectorAll('td.short:first-child')) {
    const range = document.createRange();
    range.selectNodeContents(cell.firstChild ?? cell);
    const tops = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
    if (tops.size > 1) wrong.push(`the name "${cell.textContent}" is broken`);
  }
  const verb = document.querySelector('.verb').textContent;
  const decides = verb.endsWith('analyze') || document.querySelector('footer code')?.textContent.includes(' --auto');
  const first = document.querySelector('.leads li b')?.textContent;
  if (decides && !['Do this:', 'Nothing here is worth doing:'].includes(first)) {
    wrong.push(`the first answer is "${first}", and not what to do`);
  }
  for (const text of document.querySelectorAll('.legend li, .chart text')) {
    const [, share] = /full color: ([\d,.]+) %/.exec(text.textContent) ?? [];
    if (share && Number(share.replaceAll(',', '')) > 100) wrong.push(`"${text.textContent}" is no share`);
    if (/^0 ns$/.test(text.textContent)) wrong.push(`"${text.textContent}" has a unit of nothing`);
  }
  return wrong;
}

// Runs in the page: each table is sorted by each of its columns, both ways, and keeps its rows.
function sort() {
  const wrong = [];
  for (const table of document.querySelectorAll('table')) {
    const rows = table.tBodies[0].rows.length;
    for (const head of table.tHead.rows[0].cells) {
      for (const way of [1, 2]) {
        head.querySelector('button').click();
        const sorted = head.getAttribute('aria-sort');
        if (!['ascending', 'descending'].includes(sorted)) wrong.push(`"${head.textContent}" is not sorted (${way})`);
      }
    }
    if (table.tBodies[0].rows.length !== rows) wrong.push('a table has lost rows by sorting');
  }
  return wrong;
}

// Runs in the page: the least contrast of texts in charts to what the page has behind them.
function contrast() {
  const probe = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const luminance = (color) => {
    probe.fillStyle = color;
    probe.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...probe.getImageData(0, 0, 1, 1).data].map((c) => {
      const s = c / 255;
      return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const ground = getComputedStyle(document.body).backgroundColor;
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (color !== 'rgba(0, 0, 0, 0)') return color;
    }
    return ground;
  };
  const low = [];
  for (const element of document.querySelectorAll('p, li, td, th, small, h1, h2, h3, figcaption, a, code, pre')) {
    const is = ratio(luminance(getComputedStyle(element).color), luminance(behind(element)));
    if (element.textContent.trim() && is < 4.5) low.push(`${element.tagName} "${element.textContent.slice(0, 30)}": ${is.toFixed(1)}`);
  }
  // Text inside bars has their color behind it.
  for (const text of document.querySelectorAll('.chart text[text-anchor="start"], .chart text[text-anchor="end"]')) {
    const is = ratio(luminance(text.getAttribute('fill')), luminance(ground));
    if (is < 4.5) low.push(`text "${text.textContent}": ${is.toFixed(1)}`);
  }
  return [...new Set(low)].slice(0, 5);
}

// A busy machine is slow, and a hung browser still ends, in ms.
const timeout = 300_000;
const browser = await chromium.launch({
  executablePath,
  timeout,
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync'],
});
for (const report of reports) {
  const name = basename(report, '.html');
  let charts = 0;
  for (const [size, viewport] of Object.entries(SIZES)) {
    const context = await browser.newContext({ viewport, colorScheme: 'light', deviceScaleFactor: size === 'phone' ? 2 : 1 });
    context.setDefaultTimeout(timeout);
    const page = await context.newPage();
    const tell = (what) => problems.push(`${name}, ${size}: ${what}`);
    page.on('console', (message) => tell(`console ${message.type()}: ${message.text()}`));
    page.on('pageerror', (error) => tell(`error: ${error.message}`));
    page.on('dialog', (dialog) => { tell(`runs what a name says: ${dialog.message()}`); dialog.dismiss(); });
    page.on('request', (request) => {
      if (!/^(file|data):/.test(request.url())) tell(`asks for ${request.url()}`);
    });
    await page.goto(pathToFileURL(resolve(report)).href);
    for (const colorScheme of ['light', 'dark']) {
      await page.emulateMedia({ colorScheme });
      await page.evaluate(() => new Promise((done) => { requestAnimationFrame(() => requestAnimationFrame(done)); }));
      await page.screenshot({ path: `${pictures}/${name}-${size}-${colorScheme}.png`, fullPage: true });
      (await page.evaluate(contrast)).forEach((what) => tell(`${colorScheme}: contrast of ${what}`));
      const found = await page.evaluate(examine);
      found.wrong.forEach((what) => tell(`${colorScheme}: ${what}`));
      charts = found.charts;
      (await page.evaluate(read)).forEach((what) => tell(`${colorScheme}: ${what}`));
    }
    if (size === 'desk') {
      await page.hover('.chart svg').catch(() => {});
      (await page.evaluate(sort)).forEach(tell);
      await page.pdf({ path: `${pictures}/${name}.pdf` });
    }
    await context.close();
  }
  console.log(`${name}: ${charts} charts`);
  if (charts === 0) problems.push(`${name}: no chart`);
}
await browser.close();
for (const problem of [...new Set(problems)]) console.error(`error: ${problem}`);
process.exit(problems.length > 0 ? 1 : 0);
