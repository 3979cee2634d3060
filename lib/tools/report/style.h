#pragma once

namespace fsdp::report {

/// Style of the picture of a step, in a page or alone. Curves also differ by dashes, for readers who cannot
/// tell colours apart.
inline constexpr const char* kFigureStyle = R"css(
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1c2430; --soft: #667085; --line: #e3e7ec;
  --c0: #2563c9; --c1: #d9650b;
  --gather: #2563c9; --reduce: #d9650b; --other: #7a8699; --held: #dce7f8; --waited: #111a2b; --on: #fff;
  --forward: #0b7a55; --backward: #8f3fa0; --recompute: #5f9a3c; }
@media (prefers-color-scheme: dark) {
  :root { --page: #11151b; --card: #1a2029; --ink: #e6eaf0; --soft: #94a1b3; --line: #2c3541;
    --c0: #6ea5ff; --c1: #ff9d4d;
    --gather: #5b96f7; --reduce: #f58f3d; --other: #8e9bae; --held: #24344f; --waited: #f2f5fa; --on: #0c1118;
    --forward: #3fb98c; --backward: #cf86df; --recompute: #93cc70; }
}
rect { rx: 1.5px; } .ground { fill: var(--card); rx: 0; } .grid { stroke: var(--line); }
.tick { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
.title { fill: var(--ink); font-size: 15px; font-weight: 600; }
.on { fill: var(--on); font-size: 11px; pointer-events: none; }
.middle { text-anchor: middle; } .end { text-anchor: end; }
.curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.curve.c0 { stroke: var(--c0); } .curve.c1 { stroke: var(--c1); stroke-dasharray: 7 3; }
.forward { fill: var(--forward); } .backward { fill: var(--backward); } .recompute { fill: var(--recompute); }
.gather { fill: var(--gather); } .reduce { fill: var(--reduce); } .other { fill: var(--other); }
.held { fill: var(--held); } .waited { fill: var(--waited); } .outer { fill-opacity: .35; }
)css";

/// Style of a page, in addition to kFigureStyle.
inline constexpr const char* kPageStyle = R"css(
:root { --c2: #0b7a55; --c3: #b0308f; --c4: #5d6775; --c5: #8a5a00; --c6: #0a87a0; --c7: #c2272d; }
@media (prefers-color-scheme: dark) {
  :root { --c2: #3fc596; --c3: #f07fd2; --c4: #a9b4c3; --c5: #d7a84a; --c6: #4cc6dd; --c7: #ff7b7f; }
}
.curve.c2 { stroke: var(--c2); stroke-dasharray: 2 2.5; } .curve.c3 { stroke: var(--c3); stroke-dasharray: 10 3 2 3; }
.curve.c4 { stroke: var(--c4); } .curve.c5 { stroke: var(--c5); stroke-dasharray: 4 4; }
.curve.c6 { stroke: var(--c6); stroke-dasharray: 12 5; } .curve.c7 { stroke: var(--c7); stroke-dasharray: 5 2 2 2 2 2; }
.dot.c0 { fill: var(--c0); } .dot.c1 { fill: var(--c1); } .dot.c2 { fill: var(--c2); } .dot.c3 { fill: var(--c3); }
.dot.c4 { fill: var(--c4); } .dot.c5 { fill: var(--c5); } .dot.c6 { fill: var(--c6); } .dot.c7 { fill: var(--c7); }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 15px; margin: 0 0 6px; font-weight: 600; }
p.sub { margin: 4px 0 20px; color: var(--soft); overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-bottom: 16px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 16px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; min-width: 0; margin: 0; }
.tiles .card { padding: 10px 14px; }
.tiles b { display: block; font-size: 21px; font-weight: 600; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: 13px; }
.wide { margin-top: 16px; overflow-x: auto; }
.first { margin: 0 0 16px; }
.wide svg { min-width: 860px; }
svg { display: block; width: 100%; height: auto; }
.legend { float: right; color: var(--soft); font-size: 13px; font-weight: 400; margin-left: 14px; }
svg.swatch { display: inline-block; width: 30px; height: 8px; min-width: 0; margin: 0 6px 0 0; vertical-align: 2px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; font-weight: 600; padding: 4px 14px 4px 0; vertical-align: bottom; overflow-wrap: anywhere; }
td { padding: 4px 14px 4px 0; border-top: 1px solid var(--line); overflow-wrap: anywhere; vertical-align: top; font-variant-numeric: tabular-nums; }
tr:first-child td { border-top: 0; }
td:first-child { color: var(--soft); }
.pairs td:first-child { width: 34%; }
.runs td:first-child { color: var(--ink); } .runs td { white-space: nowrap; } 
.wide td, .wide th { overflow-wrap: break-word; }
pre { margin: 0; font: 12.5px/1.5 ui-monospace, "DejaVu Sans Mono", Consolas, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  max-height: 420px; overflow-y: auto; }
.texts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 16px; margin-top: 16px; align-items: start; }
.note { color: var(--soft); font-size: 13px; margin: 6px 0 0; }
@media print { body { background: #fff; } .card { break-inside: avoid; } pre { max-height: none; } }
)css";

}  // namespace fsdp::report
