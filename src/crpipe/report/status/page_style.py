"""Style sheet of the status page: two palettes, one column on a phone, two on a desktop."""

from __future__ import annotations

SHEET = """
:root { color-scheme: light dark; --paper: #f7f8fa; --card: #fff; --ink: #1a202c; --faint: #5d6675;
  --rule: #d9dee7; --alarm: #b42318; --c0: #2b6cb0; --c1: #c05621; --c2: #2f855a; --c3: #805ad5;
  --c4: #b83280; --c5: #4a5568; --done: #2f7a52; --busy: #2b6cb0; --ready: #90cdf4; --idle: #e4e8ef;
  --held: #d69e2e; --bad: #c53030; --odd: #805ad5; }
@media (prefers-color-scheme: dark) { :root { --paper: #12161c; --card: #1b212a; --ink: #e6e9ef;
  --faint: #a3adbb; --rule: #333c49; --alarm: #ff8a80; --c0: #63b3ed; --c1: #f6ad55; --c2: #68d391;
  --c3: #b794f4; --c4: #f687b3; --c5: #a0aec0; --done: #2f7a52; --busy: #2b6cb0; --ready: #2c5282;
  --idle: #2a323e; --held: #d69e2e; --bad: #c53030; --odd: #6b46c1; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 12px; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 16px; }
h1 { font-size: 22px; margin: 4px 0; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 8px; } h3 { font-size: 14px; margin: 8px 0 2px; }
header p { color: var(--faint); margin: 0; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 12px;
  margin: 0 0 12px; min-width: 0; }
progress { width: 100%; height: 14px; accent-color: var(--done); }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 2px 14px; margin: 8px 0 0; }
dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.alarm { color: var(--alarm); font-weight: 600; }
#resume { margin: 10px 0 0; padding: 8px 10px; border-left: 3px solid var(--held); overflow-wrap: anywhere; }
ol { list-style: none; margin: 0; padding: 0; display: grid; gap: 3px;
  grid-template-columns: repeat(auto-fill, minmax(26px, 1fr)); }
ol li { height: 26px; border-radius: 4px; text-align: center; line-height: 26px; font-size: 13px; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 10px 0 0; padding: 0;
  font-size: 13px; color: var(--faint); }
.legend b { display: inline-block; width: 20px; height: 20px; line-height: 20px; border-radius: 4px;
  text-align: center; font-weight: 400; }
.legend i { display: inline-block; width: 14px; height: 4px; border-radius: 2px; margin-right: 6px;
  vertical-align: middle; background: currentcolor; }
.waiting, .listed, .skipped { background: var(--idle); color: var(--faint); }
.staged, .split, .consolidated { background: var(--ready); color: var(--ink); }
.staging, .splitting, .training { background: var(--busy); color: #fff; }
.trained { background: var(--done); color: #fff; } .interrupted { background: var(--held); color: #1a202c; }
.failed { background: var(--bad); color: #fff; } .stale { background: var(--odd); color: #fff; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; font-size: 13px; }
.charts { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.charts section { margin: 0; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--faint); font: 13px system-ui, sans-serif; }
.rule { stroke: var(--rule); stroke-width: 1; }
polyline { fill: none; stroke: currentcolor; stroke-linejoin: round; }
.raw { stroke-width: 1; opacity: 0.3; } .mean { stroke-width: 2; }
.bin { fill: currentcolor; opacity: 0.75; }
.threshold { stroke: var(--c1); stroke-width: 1.5; stroke-dasharray: 5 4; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); }
.c3 { color: var(--c3); } .c4 { color: var(--c4); } .c5 { color: var(--c5); }
"""
