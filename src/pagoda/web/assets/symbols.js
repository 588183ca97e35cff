// LaTeX's names for symbols and functions, as characters.

const pairs = (text) =>
  Object.fromEntries(
    text
      .trim()
      .split(/\s+/)
      .map((pair) => {
        const cut = pair.lastIndexOf("=", pair.length - 2);
        return [pair.slice(0, cut), pair.slice(cut + 1)];
      }),
  );

/** Letters: italic identifiers, or upright ones. */
export const LETTERS = pairs(`
alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι
kappa=κ lambda=λ mu=μ nu=ν xi=ξ omicron=ο pi=π varpi=ϖ rho=ρ varrho=ϱ sigma=σ varsigma=ς tau=τ
upsilon=υ phi=ϕ varphi=φ chi=χ psi=ψ omega=ω Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ
Upsilon=Υ Phi=Φ Psi=Ψ Omega=Ω hbar=ℏ ell=ℓ imath=ı jmath=ȷ Re=ℜ Im=ℑ aleph=ℵ wp=℘ infty=∞
emptyset=∅ varnothing=∅ partial=∂ nabla=∇ top=⊤ bot=⊥ angle=∠ triangle=△ square=□ Box=□
blacksquare=■ checkmark=✓ degree=° prime=′ hslash=ℏ complement=∁ clubsuit=♣ diamondsuit=♢
heartsuit=♡ spadesuit=♠ flat=♭ natural=♮ sharp=♯ pounds=£ S=§ dagger=† ddagger=‡
`);

export const OPERATORS = pairs(`
times=× div=÷ cdot=⋅ pm=± mp=∓ ast=∗ star=⋆ circ=∘ bullet=∙ oplus=⊕ ominus=⊖ otimes=⊗ oslash=⊘
odot=⊙ cap=∩ cup=∪ uplus=⊎ sqcap=⊓ sqcup=⊔ vee=∨ wedge=∧ lor=∨ land=∧ setminus=∖ wr=≀ diamond=⋄
leq=≤ le=≤ geq=≥ ge=≥ neq=≠ ne=≠ equiv=≡ approx=≈ cong=≅ sim=∼ simeq=≃ propto=∝ ll=≪ gg=≫
prec=≺ succ=≻ preceq=⪯ succeq=⪰ subset=⊂ supset=⊃ subseteq=⊆ supseteq=⊇ subsetneq=⊊ in=∈ ni=∋
notin=∉ mid=∣ nmid=∤ parallel=∥ perp=⟂ vdash=⊢ dashv=⊣ models=⊨ asymp=≍ doteq=≐ leqslant=⩽
geqslant=⩾ lesssim=≲ gtrsim=≳ triangleq=≜ coloneqq=≔ to=→ rightarrow=→ leftarrow=← gets=←
leftrightarrow=↔ Rightarrow=⇒ implies=⟹ impliedby=⟸ Leftarrow=⇐ Leftrightarrow=⇔ iff=⟺
mapsto=↦ longrightarrow=⟶ longleftarrow=⟵ Longrightarrow=⟹ Longleftrightarrow=⟺ longmapsto=⟼
uparrow=↑ downarrow=↓ updownarrow=↕ Uparrow=⇑ Downarrow=⇓ nearrow=↗ searrow=↘ swarrow=↙
nwarrow=↖ hookrightarrow=↪ hookleftarrow=↩ rightharpoonup=⇀ rightleftharpoons=⇌ leadsto=⇝
forall=∀ exists=∃ nexists=∄ neg=¬ lnot=¬ therefore=∴ because=∵ ldots=… dots=… cdots=⋯ vdots=⋮
ddots=⋱ dotsc=… dotsb=⋯ colon=: lbrace={ rbrace=} langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈
rceil=⌉ vert=| lvert=| rvert=| Vert=‖ lVert=‖ rVert=‖ backslash=\\ surd=√ ltimes=⋉ rtimes=⋊
bowtie=⋈ trianglelefteq=⊴ lt=< gt=> And=&
`);

/** Operators whose limits stand above and below them in displays. */
export const LARGE = pairs(`
sum=∑ prod=∏ coprod=∐ bigcup=⋃ bigcap=⋂ bigvee=⋁ bigwedge=⋀ bigoplus=⨁ bigotimes=⨂ bigodot=⨀
bigsqcup=⨆ biguplus=⨄
`);

export const INTEGRALS = pairs("int=∫ iint=∬ iiint=∭ oint=∮ oiint=∯");

const names = (text) => new Set(text.split(" "));

/** Functions written upright; those whose limits stand below them. */
export const FUNCTIONS = names(
  "sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan log ln lg exp dim ker deg hom arg",
);
export const LIMITS = names("lim max min sup inf limsup liminf det gcd Pr argmax argmin");

export const ACCENTS = pairs(`
hat=^ widehat=^ bar=¯ overline=¯ vec=→ overrightarrow=→ dot=˙ ddot=¨ tilde=~ widetilde=~ check=ˇ
breve=˘ acute=´ grave=\` mathring=˚
`);

/** Widths in em. */
export const SPACES = {
  ",": 0.167,
  ":": 0.222,
  ">": 0.222,
  ";": 0.278,
  "!": -0.167,
  " ": 0.25,
  quad: 1,
  qquad: 2,
  enspace: 0.5,
  thinspace: 0.167,
  medspace: 0.222,
  thickspace: 0.278,
  negthinspace: -0.167,
};

const PLAIN_LETTERS = {
  bb: 0x1d538,
  cal: 0x1d49c,
  frak: 0x1d504,
  bf: 0x1d400,
  sf: 0x1d5a0,
  tt: 0x1d670,
  bfit: 0x1d468,
};
const DIGITS = { bb: 0x1d7d8, bf: 0x1d7ce, sf: 0x1d7e2, tt: 0x1d7f6, bfit: 0x1d7ce };

// Letters that Unicode had before it had the alphabets.
const EXCEPTIONS = {
  bb: { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" },
  cal: { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" },
  frak: { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" },
};

export const FONTS = {
  mathbb: "bb",
  mathcal: "cal",
  mathscr: "cal",
  mathfrak: "frak",
  mathbf: "bf",
  mathsf: "sf",
  mathtt: "tt",
  boldsymbol: "bfit",
  bm: "bfit",
  mathrm: "rm",
  mathit: "it",
  mathnormal: "it",
};

/** A letter or digit in one of the mathematical alphabets; other characters as they are. */
export function inFont(character, font) {
  const exception = EXCEPTIONS[font]?.[character];
  if (exception) return exception;
  const code = character.charCodeAt(0);
  const from = (base, first) => String.fromCodePoint(base + code - first.charCodeAt(0));
  if (/[A-Z]/.test(character) && PLAIN_LETTERS[font]) return from(PLAIN_LETTERS[font], "A");
  if (/[a-z]/.test(character) && PLAIN_LETTERS[font]) return from(PLAIN_LETTERS[font] + 26, "a");
  if (/[0-9]/.test(character) && DIGITS[font]) return from(DIGITS[font], "0");
  return character;
}
