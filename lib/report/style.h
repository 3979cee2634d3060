#pragma once

namespace fsdp::report {

/// The page's style sheet. Colour-blind people can tell blue from orange.
inline constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1c2430; --soft: #667085; --line: #e3e7ec;
  --c0: #2563c9; --c1: #d9650b; --gather: #2563c9; --reduce: #d9650b; --other: #7a8699; --held: #dce7f8; --waited: #111a2b; }
@media (prefers-color-scheme: dark) {
  :root { --page: #11151b; --card: #1a2029; --ink: #e6eaf0; --soft: #94a1b3; --line: #2c3541;
    --c0: #6ea5ff; --c1: #ff9d4d; --gather: #5b96f7; --reduce: #f58f3d; --other: #8e9bae; --held: #24344f; --waited: #f2f5fa; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 15px; margin: 0 0 6px; font-weight: 600; }
p.sub { margin: 4px 0 20px; color: var(--soft); overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-bottom: 16px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 16px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; min-width: 0; }
.tiles .card { padding: 10px 14px; }
.tiles b { display: block; font-size: 21px; font-weight: 600; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: 13px; }
.wide { margin-top: 16px; overflow-x: auto; }
.wide svg { min-width: 860px; }
svg { display: block; width: 100%; height: auto; }
.grid { stroke: var(--line); }
.tick { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
.middle { text-anchor: middle; } .end { text-anchor: end; }
.curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.curve.c0 { stroke: var(--c0); } .curve.c1 { stroke: var(--c1); }
.dot.c0 { fill: var(--c0); } .dot.c1 { fill: var(--c1); }
.gather { fill: var(--gather); } .reduce { fill: var(--reduce); } .other { fill: var(--other); }
.held { fill: var(--held); } .waited { fill: var(--waited); }
.legend { float: right; color: var(--soft); font-size: 13px; font-weight: 400; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin: 0 5px 0 14px; vertical-align: -1px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
td { padding: 4px 0; border-top: 1px solid var(--line); overflow-wrap: anywhere; vertical-align: top; }
tr:first-child td { border-top: 0; }
td:first-child { color: var(--soft); width: 34%; padding-right: 14px; }
pre { margin: 0; font: 12.5px/1.5 ui-monospace, "DejaVu Sans Mono", Consolas, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  max-height: 420px; overflow-y: auto; }
.texts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 16px; margin-top: 16px; align-items: start; }
.note { color: var(--soft); font-size: 13px; margin: 6px 0 0; }
@media print { body { background: #fff; } .card { break-inside: avoid; } pre { max-height: none; } }
)css";

}  // namespace fsdp::report
