// Draws the charts of a report and sorts its tables. `echarts` is charts.min.js; what is to be drawn
// is the JSON in #data, in the form of src/html/chart.rs.
'use strict';
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const root = document.documentElement;
  const FONT = 12;
  // Below this width names stand above their rows instead of next to them.
  const NARROW = 640;

  // ---- numbers ----

  const TIMES = [[1, 'ns'], [1e3, 'us'], [1e6, 'ms'], [1e9, 's']];

  function digits(value) {
    const size = Math.abs(value);
    if (size === 0) return '0';
    if (size >= 1000) return Math.round(value).toLocaleString('en-US');
    return String(Number(value.toPrecision(3)));
  }

  // One decimal, so that shares stand alike; more where that would be 0.
  function share(value) {
    const size = Math.abs(value);
    return size === Math.round(size) || size >= 100 || size < 0.1 ? digits(value) : value.toFixed(1);
  }

  function time(ns) {
    const size = Math.abs(ns);
    if (size === 0) return '0';
    const fits = TIMES.find(([unit]) => size / unit < 999.5) || TIMES[3];
    return `${digits(ns / fits[0])} ${fits[1]}`;
  }

  function written(axis) {
    switch (axis.scale) {
      case 'ns': case 'log_ns': return time;
      case 'log_ticks': return (value) => `${digits(value)} tk`;
      default: return (value) => (axis.unit === ' %' ? share(value) : digits(value)) + axis.unit;
    }
  }

  const isLog = (axis) => axis.scale.startsWith('log');

  // ---- colors ----

  let style = getComputedStyle(root);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  const partColor = (of) => color(typeof of === 'string' ? of : `nth-${of.nth % 8}`);

  // Black or white, whichever is easier to read on `ground`.
  function inkOn(ground) {
    const n = parseInt(ground.slice(1), 16);
    const light = [n >> 16, (n >> 8) & 255, n & 255].map((c) => {
      const s = c / 255;
      return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
    });
    const luminance = 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2];
    return luminance > 0.18 ? '#000000' : '#ffffff';
  }

  // ---- text ----

  const ruler = document.createElement('canvas').getContext('2d');
  const family = getComputedStyle(document.body).fontFamily;

  function widthOf(text) {
    ruler.font = `${FONT}px ${family}`;
    return ruler.measureText(text).width;
  }

  // The text, or as much of it as fits: names differ at their ends, so `end` characters stay there.
  function fit(text, width, end = 0) {
    if (widthOf(text) <= width) return text;
    const tail = end && text.length > 2 * end ? text.slice(-end) : '';
    let [low, high] = [0, text.length - tail.length];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (widthOf(`${text.slice(0, middle)}…${tail}`) <= width) low = middle; else high = middle - 1;
    }
    return `${text.slice(0, low)}…${tail}`;
  }

  // Elements are built node by node: no text of a report is ever read as HTML.
  function element(tag, text, parent, cls) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (cls) made.className = cls;
    if (parent) parent.append(made);
    return made;
  }

  function tip(title, lines) {
    const box = element('div', undefined, undefined, 'tip');
    element('b', title, box);
    for (const [name, value] of lines) {
      const line = element('div', undefined, box);
      element('span', name, line);
      if (value !== undefined) element('span', value, line);
    }
    return box;
  }

  // ---- marks: each meaning has a color and a shape ----

  const MARKS = {
    better: 'better', worse: 'worse', noise: 'same or within noise', plain: 'different',
  };

  function shape(mark, x, y, size) {
    const ink = color(mark);
    const ground = color('ground');
    switch (mark) {
      case 'worse':
        return { type: 'polygon', shape: { points: [[x, y - size - 1], [x + size + 1, y], [x, y + size + 1], [x - size - 1, y]] },
          style: { fill: ink, stroke: ground, lineWidth: 1 } };
      case 'noise':
        return { type: 'circle', shape: { cx: x, cy: y, r: size - 1 },
          style: { fill: ground, stroke: ink, lineWidth: 2 } };
      case 'plain':
        return { type: 'rect', shape: { x: x - size + 1, y: y - size + 1, width: 2 * size - 2, height: 2 * size - 2 },
          style: { fill: ink, stroke: ground, lineWidth: 1 } };
      default:
        return { type: 'circle', shape: { cx: x, cy: y, r: size }, style: { fill: ink, stroke: ground, lineWidth: 1 } };
    }
  }

  const line = (x1, y1, x2, y2, stroke, lineWidth, extra) => (
    { type: 'line', shape: { x1, y1, x2, y2 }, style: { stroke, lineWidth, ...extra } });
  // A line behind a text does not cross it: `halo` is the color around its letters.
  const words = (text, x, y, fill, align, halo) => (
    { type: 'text', style: { text, x, y, fill, align, verticalAlign: 'middle', font: `${FONT}px ${family}`,
      ...(halo ? { stroke: halo, lineWidth: 4 } : {}) } });

  // ---- legends ----

  const SVG = 'http://www.w3.org/2000/svg';

  function swatch(item, made) {
    const svg = document.createElementNS(SVG, 'svg');
    for (const [key, value] of Object.entries({ width: 14, height: 14, viewBox: '0 0 14 14' })) svg.setAttribute(key, value);
    const add = (tag, attributes) => {
      const child = document.createElementNS(SVG, tag);
      for (const [key, value] of Object.entries(attributes)) child.setAttribute(key, value);
      svg.append(child);
    };
    switch (item) {
      case 'better': add('circle', { cx: 7, cy: 7, r: 5, fill: made }); break;
      case 'worse': add('path', { d: 'M7 1 13 7 7 13 1 7Z', fill: made }); break;
      case 'noise': add('circle', { cx: 7, cy: 7, r: 4.5, fill: 'none', stroke: made, 'stroke-width': 2 }); break;
      case 'published': add('path', { d: 'M7 0V14', stroke: made, 'stroke-width': 3 }); break;
      case 'interval': add('path', { d: 'M1 7H13M1 3V11M13 3V11', stroke: made, 'stroke-width': 2, fill: 'none' }); break;
      default: add('rect', { x: 1, y: 1, width: 12, height: 12, fill: made, rx: 2 });
    }
    return svg;
  }

  function legend(chart, items) {
    const list = chart.parentElement.querySelector('.legend');
    list.replaceChildren(...items.map(([item, name, made]) => {
      const entry = element('li');
      entry.append(swatch(item, made));
      element('span', name, entry);
      return entry;
    }));
  }

  // ---- layout: names and words next to the rows, or above them ----

  // `says` are words on each row; `high` is a row's height.
  function layout(chart, names, says, high) {
    const width = chart.clientWidth;
    const narrow = width < NARROW;
    const widest = (texts, most) => Math.min(most, Math.max(0, ...texts.map(widthOf)) + 14);
    const left = narrow ? 12 : Math.max(24, widest(names, width * 0.28));
    const right = narrow ? 14 : says ? Math.max(24, widest(says, width * 0.36)) : 24;
    const above = narrow ? (says ? 34 : 18) : 0;
    return { width, narrow, left, right, above, row: high + above, top: 4, bottom: 46 };
  }

  // A chart of rows along one axis of numbers.
  function base(lay, axis, names, range) {
    const quiet = color('quiet');
    const show = written(axis);
    const log = isLog(axis);
    return {
      animation: false,
      backgroundColor: 'transparent',
      textStyle: { fontFamily: family, fontSize: FONT, color: color('text') },
      grid: { left: lay.left, right: lay.right, top: lay.top, bottom: lay.bottom, containLabel: false,
        outerBoundsMode: 'none' },
      xAxis: {
        type: log ? 'log' : 'value',
        ...range,
        name: fit(axis.title, lay.width - 24),
        nameLocation: 'middle', nameGap: 28,
        nameTextStyle: { color: quiet, fontSize: FONT },
        axisLabel: { color: quiet, fontSize: FONT, formatter: (value) => show(value), hideOverlap: true,
          alignMinLabel: lay.narrow ? 'left' : undefined, alignMaxLabel: lay.narrow ? 'right' : undefined },
        splitNumber: lay.narrow ? 3 : 6,
        splitLine: { lineStyle: { color: color('line') } },
        axisLine: { show: false }, axisTick: { show: false },
      },
      yAxis: {
        type: 'category', data: names.map((_, at) => String(at)), inverse: true,
        axisLabel: { show: false }, axisLine: { show: false }, axisTick: { show: false }, splitLine: { show: false },
      },
      tooltip: {
        trigger: 'axis', confine: true, axisPointer: { type: 'shadow', shadowStyle: { color: quiet, opacity: 0.12 } },
        backgroundColor: color('card'), borderColor: color('line'), textStyle: { color: color('text'), fontSize: FONT },
      },
      series: [],
    };
  }

  // Names and words of the rows, and the line at 0.
  function labels(lay, names, says, marks) {
    const ink = color('text');
    return {
      type: 'custom', silent: true, z: 3, data: names.map((_, at) => [0, at]), encode: { x: -1, y: 1 },
      renderItem: (params, api) => {
        const at = params.dataIndex;
        const box = params.coordSys;
        const high = api.size([0, 1])[1];
        const y = api.coord([0, at])[1];
        const top = y - high / 2;
        const children = [];
        const label = says && says[at];
        const inkOf = marks ? color(marks[at] === 'plain' ? 'text' : marks[at]) : color('quiet');
        if (lay.narrow) {
          const room = lay.width - 4;
          const halo = color('ground');
          children.push(words(fit(names[at], room, 9), 2, top + 10, ink, 'left', halo));
          if (label) children.push(words(fit(label, room), 2, top + 26, inkOf, 'left', halo));
        } else {
          children.push(words(fit(names[at], lay.left - 12, 9), box.x - 10, y, ink, 'right'));
          if (label) children.push(words(fit(label, lay.right - 12), box.x + box.width + 10, y, inkOf, 'left'));
        }
        return { type: 'group', children };
      },
    };
  }

  function zeroLine() {
    return {
      type: 'custom', silent: true, z: 1, data: [[0, 0]], encode: { x: -1, y: 1 },
      renderItem: (params, api) => {
        const x = api.coord([0, 0])[0];
        const box = params.coordSys;
        return line(x, box.y, x, box.y + box.height, color('quiet'), 1.5);
      },
    };
  }

  function limitLine(limit) {
    return {
      type: 'custom', silent: true, z: 1, data: [[limit, 0]], encode: { x: 0, y: 1 },
      renderItem: (params, api) => {
        const x = api.coord([limit, 0])[0];
        const box = params.coordSys;
        return line(x, box.y, x, box.y + box.height, color('text'), 2, { lineDash: [6, 4] });
      },
    };
  }

  // Where a row's marks are drawn: below what stands above them.
  const middle = (lay, y) => y + lay.above / 2;

  // ---- kinds ----

  function intervals(chart, of) {
    const { axis, rows } = of;
    const names = rows.map((row) => row.name);
    const says = rows.map((row) => row.says);
    const marks = rows.map((row) => row.mark);
    const lay = layout(chart, names, says, 28);
    const option = base(lay, axis, names, {});
    const show = written(axis);
    const ends = (row) => (row.half_width === null ? [row.value, row.value] : [row.value - row.half_width, row.value + row.half_width]);
    const hasPublished = rows.some((row) => row.published !== null);
    const hasLimit = of.limit !== undefined;
    option.series = [
      zeroLine(),
      ...(hasLimit ? [limitLine(of.limit)] : []),
      {
        type: 'custom', z: 2, encode: { x: [0, 2, 3, 4], y: 1 },
        data: rows.map((row, at) => [row.value, at, ...ends(row), row.published === null ? '-' : row.published]),
        renderItem: (params, api) => {
          const row = rows[params.dataIndex];
          const at = (value) => api.coord([value, params.dataIndex]);
          const children = [];
          const y = middle(lay, at(0)[1]);
          if (row.published !== null) {
            const x = at(row.published)[0];
            if (row.value !== null) {
              children.push(line(x, y, at(row.value)[0], y, color('quiet'), 1, { lineDash: [2, 3] }));
            }
            children.push(line(x, y - 9, x, y + 9, color('text'), 3));
          }
          if (row.value !== null) {
            const ink = color(row.mark);
            if (row.half_width !== null) {
              const [low, high] = ends(row).map((value) => at(value)[0]);
              children.push(line(low, y, high, y, ink, 2), line(low, y - 5, low, y + 5, ink, 2), line(high, y - 5, high, y + 5, ink, 2));
            }
            children.push(shape(row.mark, at(row.value)[0], y, 5));
          }
          return { type: 'group', children };
        },
      },
      labels(lay, names, says, marks),
    ];
    option.tooltip.formatter = ([{ dataIndex }]) => {
      const row = rows[dataIndex];
      const lines = [[row.says]];
      if (row.published !== null) lines.push(['published', show(row.published)]);
      if (row.value !== null) lines.push([hasPublished ? 'simulated' : 'mean', show(row.value)]);
      if (row.half_width !== null) lines.push(['95% interval', ends(row).map(show).join(' to ')]);
      return tip(row.name, lines);
    };
    const items = hasPublished ? [['published', 'published', color('text')]] : [];
    for (const [mark, name] of Object.entries(MARKS)) {
      if (marks.includes(mark)) items.push([mark, hasLimit ? WITHIN[mark] : hasPublished ? NEAR[mark] : name, color(mark)]);
    }
    if (hasLimit) items.push(['published', `limit ${show(of.limit)}`, color('text')]);
    if (rows.some((row) => row.half_width !== null)) items.push(['interval', '95% interval', color('quiet')]);
    legend(chart, items);
    return { option, lay, count: rows.length };
  }

  // The same marks where something is held against a limit.
  const WITHIN = { better: 'holds', worse: 'fails', noise: 'may hold or fail', plain: 'value' };

  // The same marks where something is held against what was published.
  const NEAR = { better: 'simulated, comes out', worse: 'simulated, off', noise: 'simulated, fitted', plain: 'simulated' };

  function stacked(chart, of) {
    const { axis, rows, parts, most } = of;
    const lay = layout(chart, rows, undefined, rows.length > 24 ? 20 : 28);
    const option = base(lay, axis, rows, { min: 0, ...(most === null ? {} : { max: most, interval: most / 4 }) });
    const show = written(axis);
    const longest = most ?? Math.max(...rows.map((_, at) => parts.reduce((sum, part) => sum + (part.values[at] || 0), 0)));
    const room = (lay.width - lay.left - lay.right) / longest;
    option.series = parts.map((part) => {
      const fill = partColor(part.color);
      return {
        type: 'custom', z: 2, encode: { x: 0, y: 1 },
        data: part.values.map((value, at) => [value, at]),
        renderItem: (params, api) => {
          const at = params.dataIndex;
          const value = part.values[at];
          if (!value) return { type: 'group', children: [] };
          const before = parts.slice(0, parts.indexOf(part)).reduce((sum, other) => sum + (other.values[at] || 0), 0);
          const [x, y] = api.coord([before, at]);
          const end = api.coord([before + value, at])[0];
          const high = (lay.row - lay.above) * 0.68;
          const top = middle(lay, y) - high / 2;
          const children = [{ type: 'rect', shape: { x, y: top, width: Math.max(end - x, 0.5), height: high },
            style: { fill, stroke: color('ground'), lineWidth: end - x > 3 ? 1 : 0 } }];
          // Rounded where there is no room, but not what that would make 0 or much else.
          const texts = value < 10 ? [show(value)] : [show(value), `${Math.round(value)}${axis.unit}`];
          const text = texts.find((text) => widthOf(text) + 6 < value * room);
          if (text && high >= 13) {
            children.push(words(text, (x + end) / 2, middle(lay, y), inkOn(fill), 'center'));
          }
          return { type: 'group', children };
        },
      };
    });
    // What the axis must hold: the whole bars.
    option.series.push({
      type: 'custom', silent: true, encode: { x: 0, y: 1 }, renderItem: () => ({ type: 'group', children: [] }),
      data: rows.map((_, at) => [parts.reduce((sum, part) => sum + (part.values[at] || 0), 0), at]),
    });
    option.series.push(labels(lay, rows));
    option.tooltip.formatter = ([{ dataIndex }]) => tip(rows[dataIndex], parts
      .filter((part) => part.values[dataIndex]).map((part) => [part.name, show(part.values[dataIndex])]));
    legend(chart, parts.map((part) => ['part', part.name, partColor(part.color)]));
    return { option, lay, count: rows.length };
  }

  function ranges(chart, of) {
    const { axis, rows, points } = of;
    const names = rows.map((row) => row.name);
    const says = rows.map((row) => row.says);
    const lay = layout(chart, names, says, 26);
    const all = rows.flatMap((row) => row.points).map((value) => Math.max(value, 1));
    const decade = (value, round) => 10 ** round(Math.log10(value));
    const [min, max] = [decade(Math.min(...all), Math.floor), decade(Math.max(...all), Math.ceil)];
    const show = written(axis);
    // Numbers at the ends of a logarithmic axis are centered there.
    const half = (value) => widthOf(show(value)) / 2 + 4;
    lay.left = Math.max(lay.left, half(min));
    lay.right = Math.max(lay.right, half(max));
    const option = base(lay, axis, names, { min, max });
    const inkOf = (at) => color(['guest', 'nth-2', 'exits', 'preempted'][at] || 'noise');
    option.series = [
      {
        type: 'custom', z: 2, encode: { x: [0], y: 1 }, data: rows.map((row, at) => [Math.max(row.points[0], 1), at]),
        renderItem: (params, api) => {
          const at = params.dataIndex;
          const places = rows[at].points.map((value) => api.coord([Math.max(value, 1), at]));
          const y = middle(lay, places[0][1]);
          const children = [line(places[0][0], y, places[places.length - 1][0], y, color('quiet'), 2)];
          // The first is drawn last: where all are one, the median shows.
          for (let n = places.length - 1; n >= 0; n -= 1) {
            children.push({ type: 'circle', shape: { cx: places[n][0], cy: y, r: n === 0 ? 5 : 4 },
              style: { fill: inkOf(n), stroke: color('ground'), lineWidth: 1 } });
          }
          return { type: 'group', children };
        },
      },
      labels(lay, names, says),
    ];
    option.tooltip.formatter = ([{ dataIndex }]) => tip(names[dataIndex], points.map((name, n) => [name, show(rows[dataIndex].points[n])]));
    legend(chart, points.map((name, n) => ['better', name, inkOf(n)]));
    return { option, lay, count: rows.length };
  }

  function dots(chart, of) {
    const { axis, rows, dots: kinds } = of;
    const lay = layout(chart, rows, undefined, 24);
    const option = base(lay, axis, rows, {});
    const show = written(axis);
    const symbols = [['circle', 'better'], ['diamond', 'worse'], ['rect', 'part']];
    option.series = [zeroLine(), ...kinds.map((kind, n) => ({
      type: 'scatter', z: 2, symbol: symbols[n % 3][0], symbolSize: n % 3 === 1 ? 13 : 10, data: kind.values.map((value, at) => [value === null ? '-' : value, at]),
      symbolOffset: [0, lay.above / 2],
      itemStyle: { color: partColor(kind.color), borderColor: color('ground'), borderWidth: 1, opacity: 1 },
    })), labels(lay, rows)];
    option.tooltip.formatter = ([{ dataIndex }]) => tip(rows[dataIndex], kinds
      .filter((kind) => kind.values[dataIndex] !== null).map((kind) => [kind.name, show(kind.values[dataIndex])]));
    legend(chart, kinds.map((kind, n) => [symbols[n % 3][1], kind.name, partColor(kind.color)]));
    return { option, lay, count: rows.length };
  }

  function heat(chart, of) {
    const { axis, rows, cells, width, what, unit } = of;
    const show = (value) => (unit === ' %' ? share(value) : digits(value)) + unit;
    const lay = layout(chart, rows, undefined, rows.length > 24 ? 16 : 24);
    const buckets = Math.max(...cells.map((row) => row.length));
    const option = base(lay, axis, rows, { min: 0, max: width * buckets });
    // A full color for less than 1 % or 0.01 vCPUs would show noise.
    const most = Math.max(unit === ' %' ? 1 : 0.01, ...cells.flat());
    const fill = partColor(of.color);
    option.series = [
      {
        type: 'custom', silent: true, z: 2, encode: { x: 0, y: 1 }, data: rows.map((_, at) => [0, at]),
        renderItem: (params, api) => {
          const at = params.dataIndex;
          const [x, y] = api.coord([0, at]);
          const wide = (api.coord([width, at])[0] - x);
          const high = (lay.row - lay.above) * 0.86;
          const top = middle(lay, y) - high / 2;
          const children = [{ type: 'rect', shape: { x, y: top, width: wide * buckets, height: high }, style: { fill: color('card') } }];
          cells[at].forEach((value, n) => {
            if (!value) return;
            children.push({ type: 'rect', shape: { x: x + n * wide, y: top, width: wide + 0.3, height: high },
              style: { fill, opacity: 0.1 + 0.9 * (value / most) } });
          });
          return { type: 'group', children };
        },
      },
      labels(lay, rows),
    ];
    option.tooltip.formatter = ([{ dataIndex }]) => {
      const row = cells[dataIndex];
      const mean = row.reduce((sum, value) => sum + value, 0) / row.length;
      const highest = row.indexOf(Math.max(...row));
      return tip(rows[dataIndex], [[`${what}, on average`, show(mean)],
        ['highest', `${show(row[highest])} at ${written(axis)(highest * width)}`]]);
    };
    legend(chart, [['part', `${what}, full color: ${show(most)}`, fill]]);
    return { option, lay, count: rows.length };
  }

  const KINDS = { intervals, limited: intervals, stacked, ranges, dots, heat };

  // ---- drawing, and drawing again ----

  const drawn = new Map();

  function draw(chart) {
    const of = data[Number(chart.dataset.chart)];
    if (chart.clientWidth === 0) return;
    const { option, lay, count } = KINDS[of.kind](chart, of);
    const high = count * lay.row + lay.top + lay.bottom;
    chart.style.height = `${high}px`;
    let made = drawn.get(chart);
    if (!made) {
      made = { instance: echarts.init(chart, null, { renderer: 'svg', height: high }) };
      drawn.set(chart, made);
    } else {
      made.instance.resize({ height: high });
    }
    made.width = chart.clientWidth;
    made.instance.setOption(option, { notMerge: true });
  }

  const charts = [...document.querySelectorAll('.chart')];

  function drawAll() {
    style = getComputedStyle(root);
    charts.forEach(draw);
  }

  drawAll();
  const watch = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if ((drawn.get(target) || {}).width !== target.clientWidth) draw(target);
    }
  });
  charts.forEach((chart) => watch.observe(chart));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawAll);
  // On paper everything is dark on light.
  addEventListener('beforeprint', () => { root.classList.add('print'); drawAll(); });
  addEventListener('afterprint', () => { root.classList.remove('print'); drawAll(); });

  // ---- tables ----

  const UNITS = { ns: 1, us: 1e3, ms: 1e6, s: 1e9 };

  // What a cell is sorted by: its number in one unit, or its text.
  function key(cell) {
    const text = (cell.firstChild ? cell.firstChild.textContent : '').trim();
    const found = /^[<≤≥+]?\s*([+-]?[\d,]*\.?\d+)\s*([a-z]+)?/.exec(text);
    if (!cell.classList.contains('n') || !found) {
      return text === '-' ? 0 : text;
    }
    const number = Number(found[1].replaceAll(',', '')) * (UNITS[found[2]] || 1);
    return text.startsWith('<') ? number / 2 : number;
  }

  function compare(a, b) {
    if (typeof a === 'number' && typeof b === 'number') return a - b;
    if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
    return typeof a === 'number' ? -1 : 1;
  }

  document.addEventListener('click', (event) => {
    const head = event.target.closest('th');
    if (!head) return;
    const body = head.closest('table').tBodies[0];
    const column = head.cellIndex;
    const before = head.getAttribute('aria-sort');
    const isNumber = head.classList.contains('n');
    const descending = before ? before === 'ascending' : isNumber;
    for (const other of head.parentElement.cells) other.removeAttribute('aria-sort');
    head.setAttribute('aria-sort', descending ? 'descending' : 'ascending');
    const rows = [...body.rows].map((row) => [key(row.cells[column]), row]);
    rows.sort((a, b) => (descending ? compare(b[0], a[0]) : compare(a[0], b[0])));
    body.append(...rows.map(([, row]) => row));
  });
})();
