/* What the papers report, with their setting: to stand beside what was measured here, in a column of its own. Other
   models, machines and counting; not to be compared with our figures, only read next to them. */

const entry = (speedup, setting, source) => ({ speedup, setting, source, text: `${speedup} ${setting} (${source})` });

export const PAPERS = {
  tabed: entry('1.74×', 'computed from block efficiency 2.29; LLaVA-1.5 7B with a 68M drafter, γ 5, greedy', 'arXiv 2601.20357'),
  sage: entry('3.36×', 'LLaVA-OneVision 72B with 7B, greedy, drafter sees a tenth of the clip', 'arXiv 2602.00523'),
  lvspec: entry('2.70×', 'Qwen2.5-VL 32B with 7B, VDC clips, K 10, λ 0.7; 99.6 % of the score kept', 'arXiv 2604.05650'),
  specvlm: entry('2.68×', 'at best; LLaVA-OneVision 72B with 7B, drafter sees a tenth of the clip', 'arXiv 2508.16201'),
  hivis: entry('2.65×', 'at best; trained one-layer drafter, A800', 'HiViS paper'),
  dream: entry('3.06×', 'mean at temperature 0; LLaVA-1.6 7B, trained drafter', 'DREAM paper'),
};
