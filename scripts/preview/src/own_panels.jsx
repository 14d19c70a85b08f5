// Panels whose components are in Grafana's application and in no package: drawn here in a simple way, after its look.
import { colorManipulator, FieldType, getFieldDisplayName } from '@grafana/data';
import * as schemes from 'd3-scale-chromatic';
import React, { useLayoutEffect, useRef } from 'react';

const LEFT = 64, BOTTOM = 22;

function seriesOf(frames) {
  return frames.flatMap((frame) => {
    const time = frame.fields.find((field) => field.type === FieldType.time);
    return frame.fields.filter((field) => field.type === FieldType.number)
      .map((field) => ({ field, times: time.values, stepMs: time.config.interval,
        name: getFieldDisplayName(field, frame, frames) }));
  });
}

// Rows and columns of cells; `colourOf` gives a cell its colour.
function Cells({ rows, range, theme, width, height, colourOf, reverse, gap }) {
  const canvas = useRef(null);
  useLayoutEffect(() => {
    const scale = devicePixelRatio, ctx = canvas.current.getContext('2d');
    canvas.current.width = width * scale;
    canvas.current.height = height * scale;
    ctx.scale(scale, scale);
    ctx.font = `12px ${theme.typography.fontFamily}`;
    const plot = { width: width - LEFT, height: height - BOTTOM };
    const tall = plot.height / rows.length;
    const x = (ms) => LEFT + ((ms - range.fromMs) / (range.toMs - range.fromMs)) * plot.width;
    rows.forEach((row, index) => {
      const top = (reverse ? index : rows.length - 1 - index) * tall;
      row.times.forEach((at, place) => {
        ctx.fillStyle = colourOf(row.field, row.field.values[place]);
        const left = Math.max(Math.floor(x(at)), LEFT);
        const above = Math.round(top), below = Math.round(top + tall) - gap;
        ctx.fillRect(left, above, Math.min(Math.ceil(x(at + row.stepMs)), width) - left, Math.max(below - above, 1));
      });
      const every = Math.ceil(14 / tall);
      if (index % every === 0) {
        ctx.fillStyle = theme.colors.text.secondary;
        ctx.textAlign = 'right';
        ctx.textBaseline = 'middle';
        ctx.fillText(row.name, LEFT - 6, top + tall / 2, LEFT - 8);
      }
    });
    ctx.fillStyle = theme.colors.text.secondary;
    ctx.textAlign = 'center';
    const hours = Math.max(Math.round((range.toMs - range.fromMs) / 3.6e6 / (plot.width / 90)), 1) * 3.6e6;
    for (let at = Math.ceil(range.fromMs / hours) * hours; at < range.toMs; at += hours) {
      const label = new Date(at).toISOString().slice(11, 16), half = ctx.measureText(label).width / 2;
      ctx.fillText(label, Math.min(x(at), width - half), height - 8);
    }
  });
  return <canvas ref={canvas} style={{ width, height }} />;
}

export function HeatRows({ panel, frames, range, theme, width, height }) {
  const rows = seriesOf(frames), { color, yAxis } = panel.options;
  const values = rows.flatMap((row) => row.field.values.filter(Number.isFinite));
  const least = color.min ?? Math.min(...values), most = color.max ?? Math.max(...values);
  // Grafana's mode "opacity": its color from transparent to opaque.
  const fill = theme.visualization.getColorByName(color.fill);
  const scheme = color.mode === 'opacity' ? (part) => colorManipulator.alpha(fill, part) : schemes[`interpolate${color.scheme}`];
  const share = (value) => Math.min(Math.max((value - least) / (most - least || 1), 0), 1);
  const colourOf = (_, value) => scheme(color.reverse ? 1 - share(value) : share(value));
  const stops = Array.from({ length: 11 }, (_, index) => scheme(color.reverse ? 1 - index / 10 : index / 10));
  const text = (value) => { const shown = rows[0].field.display(value); return `${shown.text}${shown.suffix || ''}`; };
  return <>
    <Cells {...{ rows, range, theme, width, colourOf }} height={height - 20} reverse={yAxis.reverse} gap={0} />
    <div style={{ display: 'flex', alignItems: 'center', gap: 6, fontSize: 12, paddingLeft: LEFT,
      color: theme.colors.text.secondary }}>
      {text(least)}
      <div style={{ width: 160, height: 8, background: `linear-gradient(to right, ${stops.join(', ')})` }} />
      {text(most)}
    </div>
  </>;
}

export function States({ frames, range, theme, width, height, panel }) {
  const rows = seriesOf(frames);
  const words = (panel.fieldConfig.defaults.mappings || []).flatMap((mapping) => Object.values(mapping.options));
  return <>
    <Cells {...{ rows, range, theme, width }} height={height - 22} reverse gap={2}
      colourOf={(field, value) => field.display(value).color} />
    <div style={{ display: 'flex', gap: 14, fontSize: 12, paddingLeft: LEFT }}>
      {words.map(({ text, color }) => <span key={text}>
        <i style={{ display: 'inline-block', width: 14, height: 4, marginRight: 6, verticalAlign: 'middle',
          background: theme.visualization.getColorByName(color) }} />{text}</span>)}
    </div>
  </>;
}
