// What the way to the agent says.

import { addWords } from "./words.js";

const ENGLISH = {
  agent: "Let the model operate a computer",
  agentWhat: "This model sees, so it can work on a computer through its screen, keyboard and mouse. You give a task on the agent's own page, watch each step, allow or refuse, and stop it at any time.",
  agentRisk1: "It can do whatever you could do at that keyboard, and it misreads screens. Give it a virtual machine or an account that has little to lose, and stay.",
  agentRisk2: "Text on the screen can talk it into something else than you asked for.",
  agentRisk3: "Every screenshot goes to this server. Close what it must not see.",
  agentRisk4: "Each step sends the last three to five screenshots, 880 tokens each at 1280x720 for Qwen3-VL. Here they take time; a paid API charges for them.",
  agentDriver: "The computer",
  agentDriverHint: "x11: is the desktop on which the command is typed; else vnc://host, nanokvm://admin@host or pikvm://admin@host.",
  agentCommand: "Type this in a terminal of a machine that reaches this server and that computer:",
  agentKey: "The first line waits for this server's API key, and does not show it.",
  agentThen: "It prints an address. Open it in a browser; it works once. This page cannot start it for you.",
};

const CHINESE = {
  agent: "让模型操作电脑",
  agentWhat: "此模型能看图，因此可以通过屏幕、键盘和鼠标操作一台电脑。你在代理自己的页面上给出任务，观看每一步，允许或拒绝，并可随时停止。",
  agentRisk1: "它能做你在键盘前能做的一切，也会看错屏幕。请让它使用虚拟机或没有重要内容的账户，并守在旁边。",
  agentRisk2: "屏幕上的文字可能诱使它去做你没有要求的事。",
  agentRisk3: "每张截图都会发送到此服务器。请关闭不应被看到的内容。",
  agentRisk4: "每一步发送最近三到五张截图，1280x720 时每张 880 token（Qwen3-VL）。在这里它们花费时间，付费接口则按此收费。",
  agentDriver: "被控电脑",
  agentDriverHint: "x11: 是输入命令的那台机器的桌面；或 vnc://主机、nanokvm://admin@主机、pikvm://admin@主机。",
  agentCommand: "在能访问此服务器和那台电脑的机器上，在终端中输入：",
  agentKey: "第一行等待输入此服务器的 API 密钥，不会显示出来。",
  agentThen: "它会打印一个地址，请在浏览器中打开，该地址只能使用一次。本页不能替你启动它。",
};

addWords(ENGLISH, CHINESE);
