// The fields for how tokens are chosen.

import { el } from "./dom.js";
import { t } from "./words.js";

// {name, word, and the limits of its values}; the first few are what most people change.
const COMMON = [
  { name: "temperature", word: "temperature", min: 0, max: 2, step: 0.05 },
  { name: "top_p", word: "topP", min: 0.01, max: 1, step: 0.01 },
  { name: "top_k", word: "topK", min: 0, step: 1 },
  { name: "max_tokens", word: "maxTokens", min: 1, step: 1 },
  { name: "seed", word: "seed", step: 1 },
];
const FURTHER = [
  { name: "min_p", word: "minP", min: 0, max: 1, step: 0.01 },
  { name: "top_n_sigma", word: "topNSigma", min: 0, max: 1000, step: 0.1 },
  { name: "presence_penalty", word: "presencePenalty", min: -2, max: 2, step: 0.1 },
  { name: "frequency_penalty", word: "frequencyPenalty", min: -2, max: 2, step: 0.1 },
  { name: "repetition_penalty", word: "repetitionPenalty", min: 0.01, max: 100, step: 0.01 },
  { name: "min_tokens", word: "minTokens", min: 0, step: 1 },
];

/** Fields that write into `values`; `changed` runs after each change. Empty ones show what counts
 * in their place: that of `general`, else the model's own. */
export function samplerFields(values, changed, general = {}) {
  const field = ({ name, word, ...limits }) => {
    const hint = String(general[name] ?? t("byModel"));
    const input = el("input", {
      type: "number",
      "data-sampling": name,
      placeholder: hint,
      ...limits,
      onchange() {
        delete values[name];
        if (input.value !== "" && input.reportValidity()) values[name] = Number(input.value);
        changed();
      },
    });
    input.value = values[name] ?? "";
    return el("label", {}, el("span", {}, t(word)), input);
  };
  const more = FURTHER.map(field);
  const isSet = [...FURTHER, { name: "stop" }].some(({ name }) => values[name] !== undefined);
  return [
    el("div", { class: "fields" }, ...COMMON.map(field)),
    el(
      "details",
      { class: "more", open: isSet },
      el("summary", {}, t("moreSamplers")),
      el("div", { class: "fields" }, ...more),
      stopField(values, changed, general),
    ),
  ];
}

/** Texts that end a reply, one on a line; `\n` in one is a line break. */
function stopField(values, changed, general) {
  const shown = (texts) => (texts ?? []).map((text) => text.replaceAll("\n", "\\n")).join("\n");
  const area = el("textarea", {
    rows: "2",
    class: "mono",
    spellcheck: "false",
    "data-sampling": "stop",
    placeholder: shown(general.stop) || t("stopHint"),
    onchange() {
      const texts = area.value.split("\n").filter(Boolean);
      delete values.stop;
      if (texts.length) values.stop = texts.map((text) => text.replaceAll("\\n", "\n"));
      changed();
    },
  });
  area.value = shown(values.stop);
  return el("label", { class: "wide" }, el("span", {}, t("stopTexts")), area);
}
