// A dashboard as Grafana lays it out, for a picture: window.PREVIEW = {dashboard, variables, fromMs, toMs, results, marks,
// mode, width}. Says "preview: N failed" on the console once everything is there.
import { createTheme, ThemeContext } from '@grafana/data';
import { initPluginTranslations } from '@grafana/i18n';
import { GlobalStyles, PortalContainer } from '@grafana/ui';
import React from 'react';
import { createRoot } from 'react-dom/client';
import { framesOf } from './data.js';
import { Bars, Curves, Rows, Stats, Words } from './grafana_panels.jsx';
import { HeatRows, States } from './own_panels.jsx';

const { dashboard, variables, results, marks, mode, width, ...range } = window.PREVIEW;
const theme = createTheme({ colors: { mode } });
const CELL = 30, GAP = 8, MARGIN = 16, HEADER = 96, TITLE = 32;
const KINDS = {
  timeseries: Curves, stat: Stats, bargauge: Bars, table: Rows, text: Words, heatmap: HeatRows, 'state-timeline': States,
};
let failures = 0;

function Body(props) {
  const { panel, frames } = props;
  // Grafana's own annotations are in its database, which is not there.
  if (panel.type === 'annolist') { return <Nothing text="No annotations found" />; }
  const Kind = KINDS[panel.type];
  if (!Kind) { throw new Error(`panels of the type ${panel.type} are not drawn`); }
  if (!frames.length && panel.fieldConfig && panel.type !== 'stat') { return <Nothing text={panel.fieldConfig.defaults.noValue || 'No data'} />; }
  return <Kind {...props} />;
}

function Nothing({ text }) {
  return <div style={{ height: '100%', display: 'flex', alignItems: 'center', justifyContent: 'center', padding: 16,
    textAlign: 'center', color: theme.colors.text.secondary }}>{text}</div>;
}

class Guard extends React.Component {
  state = {};
  static getDerivedStateFromError(error) { failures += 1; return { error }; }
  render() { return this.state.error ? <pre style={{ color: 'red' }}>{String(this.state.error.stack)}</pre> : this.props.children; }
}

function Panel({ panel, frames }) {
  const column = (width - 2 * MARGIN + GAP) / 24, { x, y, w, h } = panel.gridPos;
  const box = { position: 'absolute', left: MARGIN + x * column, top: HEADER + y * (CELL + GAP), width: w * column - GAP,
    height: h * (CELL + GAP) - GAP };
  if (panel.type === 'row') {
    return <div style={{ ...box, display: 'flex', alignItems: 'center', fontWeight: 500, fontSize: 16 }}>
      <span style={{ marginRight: 8 }}>{panel.collapsed ? '›' : '⌄'}</span>{panel.title}
      {panel.collapsed && <small style={{ marginLeft: 8, color: theme.colors.text.secondary }}>({panel.panels.length} panels)</small>}
    </div>;
  }
  const inner = { width: box.width - 2 * GAP - 2, height: box.height - TITLE - 2 * GAP - 2 };
  return <section style={{ ...box, background: theme.components.panel.background, borderRadius: 6, overflow: 'hidden',
    border: `1px solid ${theme.components.panel.borderColor}` }}>
    <h6 style={{ margin: 0, padding: '0 8px', lineHeight: `${TITLE}px`, fontSize: 14, whiteSpace: 'nowrap', overflow: 'hidden',
      textOverflow: 'ellipsis' }}>{panel.title}</h6>
    <div style={{ padding: GAP, height: inner.height + 2 * GAP }}>
      <Guard><Body {...{ panel, frames, marks, range, theme }} {...inner} /></Guard>
    </div>
  </section>;
}

function Header() {
  const chip = { border: `1px solid ${theme.colors.border.medium}`, borderRadius: 4, padding: '4px 8px' };
  return <header style={{ padding: `12px ${MARGIN}px 0`, height: HEADER }}>
    <div style={{ display: 'flex', justifyContent: 'space-between', fontSize: 16, fontWeight: 500 }}>
      <span>Dashboards › Tidegauge › {dashboard.title}</span>
      <span style={{ ...chip, fontSize: 13 }}>Last {dashboard.time.from.replace('now-', '').replace('h', ' hours')} · UTC · {dashboard.refresh}</span>
    </div>
    <div style={{ display: 'flex', gap: 8, marginTop: 12, fontSize: 13 }}>
      {variables.map(({ label, text }) => <span key={label} style={chip}>
        <span style={{ color: theme.colors.text.secondary, marginRight: 8 }}>{label}</span>{text}</span>)}
    </div>
  </header>;
}

async function main() {
  await initPluginTranslations('tidegauge-preview');
  const panels = await Promise.all(dashboard.panels.map(async (panel) => (
    { panel, frames: panel.fieldConfig ? await framesOf(panel, results[panel.id], theme) : [] })));
  const bottom = Math.max(...dashboard.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  createRoot(document.getElementById('root')).render(<ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <main style={{ position: 'relative', width, height: HEADER + bottom * (CELL + GAP) + 24, overflow: 'hidden',
      background: theme.colors.background.canvas, color: theme.colors.text.primary }}>
      <Header />
      {panels.map((one) => <Panel key={one.panel.id} {...one} />)}
      <footer style={{ position: 'absolute', bottom: 4, left: MARGIN, fontSize: 11, color: theme.colors.text.disabled }}>
        Drawn without a Grafana server from {"Grafana's"} components and made-up figures; heat maps, state timelines and marks
        are redrawn.</footer>
    </main>
    <PortalContainer />
  </ThemeContext.Provider>);
  setTimeout(() => console.log(`preview: ${failures} failed`), 1500);
}

main().catch((error) => console.log(`preview: ${error.stack}`));
