// What the models' dialog and a load's progress say, in English and in Chinese.

import { addWords, t } from "./words.js";

const ENGLISH = {
  models: "Models",
  onServer: "On this server",
  inCache: "Fetched before",
  findModel: "Find a model",
  findHint: "org/name, or a part of it",
  findHelp: "A model of Hugging Face (org/name, org/name:Q4_K_M) or ModelScope (modelscope:org/name).",
  use: "Use",
  inUse: "In use",
  load: "Load",
  unload: "Unload",
  add: "Add",
  fetch: "Fetch",
  plan: "Will it fit?",
  planning: "Reading its headers…",
  loaded: "loaded",
  fetching: "fetching",
  vectors: "makes vectors, no chats",
  fits: "Fits, about {rate} tok/s here",
  fitsVectors: "Fits",
  fitsAfter: "Fits once others are unloaded, about {rate} tok/s here",
  fitsAfterVectors: "Fits once others are unloaded",
  tooLarge: "Does not fit: {problem}",
  contextOf: "{count} tokens of context",
  disturbed: "measured while other programs were busy",
  between: "Between {slow} and {fast} tok/s: an estimate from its headers",
  holds: "holds {size} of memory",
  pinned: "pinned",
  fetched: "{model} is here.",
  fetchFailed: "{model} could not be fetched: {why}",
  loadFailed: "{model} could not be loaded: {why}",
  tryAgain: "Try again",
  unloadSure: "Unload {model}? Replies that it writes now are cut off.",
  removeSure: "Delete {model} from this machine? That frees {size}.",
  freed: "{model} is deleted; {size} are free.",
  resumes: "Cancelled. What came so far is kept for the next time.",
  spent: "{seconds} s",
  noneFound: "Nothing known has this name; write it as org/name.",
  phaseLaunch: "starting",
  phaseFetch: "fetching",
  phaseHeaders: "reading headers",
  phaseWeights: "loading weights",
  phasePlan: "planning memory",
  phaseWarm: "warming up",
  phaseWaits: "waiting for {what}",
};

const CHINESE = {
  models: "模型",
  onServer: "此服务器上",
  inCache: "已下载",
  findModel: "查找模型",
  findHint: "org/name，或其中一部分",
  findHelp: "Hugging Face (org/name、org/name:Q4_K_M) 或 ModelScope (modelscope:org/name) 上的模型。",
  use: "使用",
  inUse: "使用中",
  load: "加载",
  unload: "卸载",
  add: "添加",
  fetch: "下载",
  plan: "能运行吗？",
  planning: "正在读取文件头…",
  loaded: "已加载",
  fetching: "下载中",
  vectors: "生成向量，不能对话",
  fits: "可以运行，约 {rate} token/秒",
  fitsVectors: "可以运行",
  fitsAfter: "卸载其他模型后可以运行，约 {rate} token/秒",
  fitsAfterVectors: "卸载其他模型后可以运行",
  tooLarge: "放不下：{problem}",
  contextOf: "上下文 {count} 个 token",
  disturbed: "测量时其他程序正忙",
  between: "{slow} 到 {fast} token/秒之间：根据文件头估算",
  holds: "占用内存 {size}",
  pinned: "固定",
  fetched: "{model} 已下载。",
  fetchFailed: "无法下载 {model}：{why}",
  loadFailed: "无法加载 {model}：{why}",
  tryAgain: "重试",
  unloadSure: "卸载 {model}？它正在写的回答会中断。",
  removeSure: "从这台机器上删除 {model}？将释放 {size}。",
  freed: "{model} 已删除，释放了 {size}。",
  resumes: "已取消。已收到的部分会保留，供下次继续。",
  spent: "{seconds} 秒",
  noneFound: "没有已知模型叫这个名字，请写成 org/name。",
  phaseLaunch: "启动中",
  phaseFetch: "下载中",
  phaseHeaders: "读取文件头",
  phaseWeights: "加载权重",
  phasePlan: "规划内存",
  phaseWarm: "预热",
  phaseWaits: "等待 {what}",
};

addWords(ENGLISH, CHINESE);

const PHASES = {
  launch: "phaseLaunch",
  import: "phaseLaunch",
  "import torch": "phaseLaunch",
  "fetch model": "phaseFetch",
  "find model": "phaseHeaders",
  "read headers": "phaseHeaders",
  plan: "phasePlan",
  profile: "phasePlan",
  "load weights": "phaseWeights",
  "warm up": "phaseWarm",
};

/** "loading weights 43% · 12 s", "waiting for node 1 at 10.0.0.7 port 29501 · 12 s". */
export function phaseText({ phase, done, total, began }) {
  const [, what] = /^wait for (.+)$/.exec(phase) ?? [];
  const words = what ? t("phaseWaits", { what }) : t(PHASES[phase] ?? "loading");
  const share = total ? ` ${Math.floor((100 * done) / total)}%` : "";
  const seconds = Math.max(0, Math.round((Date.now() - began) / 1000));
  return `${words}${share} · ${t("spent", { seconds })}`;
}

export function sizeText(bytes) {
  const gib = bytes / 2 ** 30;
  return gib >= 1 ? `${gib.toFixed(1)} GiB` : `${Math.max(1, Math.round(bytes / 2 ** 20))} MiB`;
}

export const rateText = (rate) => (rate < 10 ? rate.toFixed(1) : String(Math.round(rate)));
