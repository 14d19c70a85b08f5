// Prometheus' answers as Grafana's data frames, with the panel's transformations and field settings applied by Grafana's
// own code. Its application registers what can be set on a field; outside of it that has to be done here.
import {
  applyFieldOverrides, cacheFieldDisplayNames, FieldConfigOptionsRegistry, FieldType, standardTransformers, standardTransformersRegistry,
  toDataFrame, transformDataFrame,
} from '@grafana/data';
import { firstValueFrom } from 'rxjs';

const STANDARD = ['unit', 'min', 'max', 'decimals', 'displayName', 'noValue', 'thresholds', 'mappings', 'color', 'links'];
const USED = ['mergeTransformer', 'filterFieldsByNameTransformer', 'organizeFieldsTransformer'];

standardTransformersRegistry.setInit(() => USED.map((name) => {
  const info = standardTransformers[name];
  return { id: info.id, name: info.name, transformation: () => Promise.resolve(info) };
}));

export async function framesOf(panel, results, theme) {
  const raw = results.flatMap((result) => (result.table ? [tableFrame(result, results.length)] : seriesFrames(result)));
  const moved = await firstValueFrom(transformDataFrame(panel.transformations || [], raw, { interpolate: (text) => text }));
  const frames = applyFieldOverrides({
    data: moved.filter((frame) => frame.length > 0), fieldConfig: panel.fieldConfig, theme, timeZone: 'utc',
    fieldConfigRegistry: registryOf(panel.fieldConfig), replaceVariables: (text) => text,
  });
  cacheFieldDisplayNames(frames);
  return frames;
}

function seriesFrames({ refId, legend, stepMs, series }) {
  return series.map(({ metric, values, value }) => {
    const points = values || [value];
    return toDataFrame({ refId, fields: [
      { name: 'Time', type: FieldType.time, config: { interval: stepMs }, values: points.map(([at]) => at * 1000) },
      { name: 'Value', type: FieldType.number, labels: metric, config: { displayNameFromDS: nameOf(legend, metric) },
        values: points.map(([, text]) => Number(text)) },
    ] });
  });
}

function tableFrame({ refId, series }, queries) {
  const labels = [...new Set(series.flatMap(({ metric }) => Object.keys(metric)))].filter((name) => name !== '__name__');
  return toDataFrame({ refId, fields: [
    { name: 'Time', type: FieldType.time, values: series.map(({ value }) => value[0] * 1000) },
    ...labels.map((name) => ({ name, type: FieldType.string, values: series.map(({ metric }) => metric[name]) })),
    { name: queries > 1 ? `Value #${refId}` : 'Value', type: FieldType.number,
      values: series.map(({ value }) => Number(value[1])) },
  ] });
}

// As Grafana's Prometheus data source: labels in double braces; without a legend, the series as PromQL writes it.
function nameOf(legend, metric) {
  if (legend) {
    return legend.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => metric[label] ?? '');
  }
  const labels = Object.entries(metric).filter(([name]) => name !== '__name__').map(([name, value]) => `${name}="${value}"`);
  return labels.length ? `${metric.__name__ || ''}{${labels.join(', ')}}` : metric.__name__ || 'Value';
}

// Every setting that this panel has, to be taken as it is.
function registryOf({ defaults, overrides }) {
  const custom = new Set(Object.keys(defaults.custom || {}));
  overrides.flatMap((rule) => rule.properties).filter(({ id }) => id.startsWith('custom.'))
    .forEach(({ id }) => custom.add(id.slice('custom.'.length)));
  const item = { process: (value) => value, shouldApply: () => true };
  return new FieldConfigOptionsRegistry(() => [
    ...STANDARD.map((id) => ({ ...item, id, path: id, name: id })),
    ...[...custom].map((path) => ({ ...item, id: `custom.${path}`, path, name: path, isCustom: true })),
  ]);
}
