// Panels that Grafana's own components draw.
import {
  dateTime, FieldType, getDisplayProcessor, getDisplayValueAlignmentFactors, getFieldDisplayValues,
  renderTextPanelMarkdown, VizOrientation,
} from '@grafana/data';
import { BarGauge, BigValue, BigValueTextMode, TimeSeries } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import React from 'react';

export function Curves({ panel, frames, marks, range, theme, width, height }) {
  const times = { from: dateTime(range.fromMs), to: dateTime(range.toMs) };
  return <TimeSeries frames={frames} timeRange={{ ...times, raw: times }} timeZone="utc" width={width} height={height}
    legend={panel.options.legend} options={{}}>
    {(builder) => { drawMarks(builder, marks, theme); return null; }}
  </TimeSeries>;
}

// Grafana's own drawing of annotations is a part of its application: a dashed line with a foot is what it looks like.
const marked = new WeakSet();
function drawMarks(builder, marks, theme) {
  if (marked.has(builder)) { return; }
  marked.add(builder);
  // Room for the half of the last tick's label that stands beyond the plot: top, right, bottom, left.
  builder.setPadding([8, 20, 0, 0]);
  builder.addHook('draw', (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    for (const mark of marks) {
      const x = plot.valToPos(mark.atMs, 'x', true);
      if (x < bbox.left || x > bbox.left + bbox.width) { continue; }
      ctx.strokeStyle = ctx.fillStyle = theme.visualization.getColorByName(mark.colour);
      ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const foot = 4 * devicePixelRatio, bottom = bbox.top + bbox.height;
      ctx.beginPath();
      ctx.moveTo(x, bottom);
      ctx.lineTo(x - foot, bottom + foot);
      ctx.lineTo(x + foot, bottom + foot);
      ctx.fill();
    }
    ctx.restore();
  });
}

export function Stats({ panel, frames, theme, width, height }) {
  const values = displayValues(panel, frames, theme, panel.options.graphMode === 'area');
  // As Grafana's VizRepeater: "vertical" numbers stand side by side, also where it chooses.
  const stacked = panel.options.orientation === 'horizontal' || (panel.options.orientation === 'auto' && width <= height);
  const size = { width: stacked ? width : width / values.length, height: stacked ? height / values.length : height };
  const named = panel.options.textMode === 'value_and_name';
  return <div style={{ display: 'flex', flexDirection: stacked ? 'column' : 'row' }}>
    {values.map((one, index) => <BigValue key={index} theme={theme} {...size} value={one.display} sparkline={one.sparkline}
      colorMode={panel.options.colorMode} graphMode={panel.options.graphMode} justifyMode="auto" wideLayout={panel.options.wideLayout}
      alignmentFactors={getDisplayValueAlignmentFactors(values)} text={panel.options.text}
      textMode={named ? BigValueTextMode.ValueAndName : BigValueTextMode.Value} count={values.length} />)}
  </div>;
}

export function Bars({ panel, frames, theme, width, height }) {
  const values = displayValues(panel, frames, theme, false);
  const bar = Math.min(panel.options.maxVizHeight, Math.max(panel.options.minVizHeight, height / values.length - 8));
  return values.map((one, index) => <div key={index} style={{ marginBottom: 8 }}>
    <BarGauge theme={theme} width={width} height={bar} value={one.display} field={one.field}
      orientation={VizOrientation.Horizontal} displayMode={panel.options.displayMode} showUnfilled
      alignmentFactors={getDisplayValueAlignmentFactors(values)} text={panel.options.text} valueDisplayMode="text" namePlacement="left"
      display={getDisplayProcessor({ field: { type: FieldType.number, config: one.field }, theme, timeZone: 'utc' })} />
  </div>);
}

function displayValues(panel, frames, theme, sparkline) {
  return getFieldDisplayValues({
    fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions, replaceVariables: (text) => text,
    theme, data: frames, sparkline, timeZone: 'utc',
  });
}

export function Rows({ panel, frames, width, height }) {
  return <TableNG data={frames[0]} width={width} height={height} structureRev={1} cellHeight={panel.options.cellHeight}
    sortBy={panel.options.sortBy} fieldConfig={panel.fieldConfig} timeRange={undefined} enableVirtualization={false} />;
}

export function Words({ panel }) {
  return <div className="markdown-html" dangerouslySetInnerHTML={{ __html: renderTextPanelMarkdown(panel.options.content) }} />;
}
