"""What the agent says in fixed sentences, in Chinese: for its page, for exports and terminals.

Journals and models get English, whoever reads them; so a sentence is found again by its form. What
is in no table, such as a model's words, stays as it is.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pagoda_agent.base.forms import Forms
from pagoda_agent.consent.reasons import WORDS

_REASONS: Mapping[str, str] = {
    "power": "它会使用电脑的电源按钮（{what}）。",
    "replug": "它会拔出电脑的键盘和鼠标。",
    "secret": "它会输入机密 {name}。",
    "typedCommand": "它会运行 {line} ({command})。",
    "enteredCommand": "按下回车会运行 {line} ({command})。",
    "unlistedLine": "它会发送 {line} 这一行，而它不在只读命令之列。",
    "unsureLine": "它会发送 {line}，但这一行上还有什么无从得知。",
    "unseenLine": "它会发送一行内容，但这一行上有什么无从得知。",
    "pasting": "它会粘贴，而粘贴的内容可能会发送命令行。",
    "committingClick": "据它自己所说，这次点击是要 {words}。",
    "committingEnter": "据它自己所说，这次回车是要 {words}。",
    "address": "{address} 不在允许的主机之列。",
    "systemKeys": "{keys} 直接作用于操作系统。",
    "closingKeys": "{keys} 会关闭窗口或程序。",
    "anyInput": "设置要求每次点击、按键和输入文字都先询问。",
    "warning": "模型提供方警告：{text}",
    "lastingPrograms": (
        "“本次任务中允许”会放行只运行 {programs} 的每一行，无论涉及哪些文件，直到任务结束。"
    ),
    "lastingClick": (
        "“本次任务中允许”会放行模型自己说是要 {what} 的每次点击，其他点击不在内，直到任务结束。"
    ),
    "lastingClose": "“本次任务中允许”会放行关闭窗口或程序的按键，直到任务结束。",
    "lastingInput": (
        "“本次任务中允许”会放行没有其他可疑之处的每次点击、按键和输入文字，直到任务结束。"
    ),
    "lastingAddress": "“本次任务中允许”会允许输入 {what} 的地址，直到任务结束。",
    "lastingAnyLine": (
        "“本次任务中允许”会放行任何一行，无论其内容，直到任务结束或暂停；已知危险的命令仍会询问。"
    ),
}
SENTENCES: Mapping[str, str] = {
    **{WORDS[code]: chinese for code, chinese in _REASONS.items()},
    # Of the demonstration.
    "A demonstration: the model is a script that knows where this form's buttons are. Everything "
    "else is the agent itself.": (
        "这是演示：模型是一段脚本，它知道表单的按钮在哪里。其余部分都是真正的代理。"
    ),
    # How actions went. Of two forms that fit, the first is taken.
    "Done.": "完成。",
    "Waited {seconds} s.": "等待了 {seconds} 秒。",
    "A new picture follows.": "随后是新的画面。",
    "The user says: {text}": "用户说：{text}",
    "{said} What was typed of it was removed again.": "{said}已输入的部分已删除。",
    "{said} What stands on that line is still there: remove it before you send anything.": (
        "{said}那一行上的内容仍在：发送任何内容之前请先删除它。"
    ),
    "Refused by the user: {reason} Do not try it again.": "被用户拒绝：{reason}不要再次尝试。",
    "Refused by the settings: {reason}": "被设置拒绝：{reason}",
    "Not executed: the screen's size changed after you saw it.": (
        "未执行：屏幕尺寸在截图之后改变了。"
    ),
    "Not executed: what it was aimed at changed before it was allowed.": (
        "未执行：在获得许可之前，目标已经改变。"
    ),
    "Not executed: {reason} The user must allow it, and nobody answered in time.": (
        "未执行：{reason}需要用户许可，但无人及时回答。"
    ),
    "Not executed: {reason} The user must allow it, and nobody is there to be asked.": (
        "未执行：{reason}需要用户许可，但无人可询问。"
    ),
    "Nobody is there to answer; decide yourself, or end the task.": (
        "无人可以回答；请自行决定，或结束任务。"
    ),
    "Not executed: {error}": "未执行：{error}",
    "The connection was lost, it may be done in part: {error}": (
        "连接中断，可能只完成了一部分：{error}"
    ),
    "The part follows, then the whole screen; positions refer to the whole.": (
        "随后是局部画面，再是整个屏幕；位置以整个屏幕为准。"
    ),
    "Where the pointer is, is not known.": "指针位置未知。",
    "The pointer is at x={x}, y={y} (shares of the screen).": (
        "指针位于 x={x}，y={y}（占屏幕的比例）。"
    ),
    # Why a task is paused, waits or is over.
    "Paused by the user.": "已由用户暂停。",
    "Cancelled by the user.": "已由用户取消。",
    "The agent is shutting down.": "代理正在关闭。",
    "The agent was closed.": "代理已关闭。",
    "The page was closed.": "页面已关闭。",
    "Somebody moved the computer's mouse; the agent lets go of it.": (
        "有人移动了电脑的鼠标，代理不再操作。"
    ),
    "The model did the same {times} times without effect. What should it do instead?": (
        "模型重复了 {times} 次相同的操作而没有效果。它应该怎么做？"
    ),
    "The model went in circles: {times} times the same.": (
        "模型在原地打转：同样的操作重复了 {times} 次。"
    ),
    "The model's replies were not understood {times} times in a row; the last: {error}": (
        "连续 {times} 次无法理解模型的回复；最后一次：{error}"
    ),
    "The cap on {name} is reached: {shown}. To go on: `pagoda agent resume RUN --max-{flag} N`.": (
        "已达到{name}上限：{shown}。继续请用：pagoda agent resume RUN --max-{flag} N。"
    ),
    "{used} of {cap} rounds are used": "已用 {used}/{cap} 轮",
    "{used} of {cap} tokens are used": "已用 {used}/{cap} token",
    "{used} of {cap} are spent": "已花费 {used}/{cap}",
    "{used} of {cap} seconds are over": "已过 {used}/{cap} 秒",
    "The screen has shown nothing for {seconds} s: the computer sleeps, is off, or its cable is "
    "out.": "屏幕已有 {seconds} 秒没有画面：电脑在休眠、已关机，或线缆松脱。",
    "{error} What should be done?": "{error}该怎么办？",
    "{kind}: {error} (a bug; the log says where)": "{kind}：{error}（程序缺陷，位置见日志）",
    "rounds": "轮数",
    "tokens": "token",
    "cost": "费用",
    "seconds": "时间",
    # What a person did at the computer.
    "I pressed the computer's power button.": "我按了电脑的电源按钮。",
    "I held the computer's power button down.": "我长按了电脑的电源按钮。",
    "I pressed the computer's reset button.": "我按了电脑的重启按钮。",
    "I plugged the computer's keyboard and mouse out and in.": "我重新插拔了电脑的键盘和鼠标。",
    # What cannot be done now.
    "The task is empty.": "任务为空。",
    "There is no task.": "没有任务。",
    "There is no such run.": "没有这次运行。",
    "That run is over: {state}.": "该次运行已经结束：{state}。",
    "The task is over: {state}.": "任务已经结束：{state}。",
    "The task was stopped before it began.": "任务在开始之前已被停止。",
    "done": "完成",
    "failed": "失败",
    "cancelled": "已取消",
    "The task is {state}, not paused.": "任务并未暂停 ({state})。",
    "The task is {state}; the model has not asked anything.": "模型没有提问 ({state})。",
    "That action does not wait for consent (any more).": "该操作并不（或不再）等待许可。",
    "That action can be allowed this once, or refused; it cannot be allowed for longer.": (
        "该操作只能允许这一次或拒绝，不能长期允许。"
    ),
    "Another task is going on; cancel it or wait for its end.": (
        "另一个任务正在进行；请取消它或等它结束。"
    ),
    "A task is going on; the computer can be changed when it is over.": (
        "任务正在进行，结束后才能更换电脑。"
    ),
    "A task is going on; pause it first.": "任务正在进行，请先暂停。",
    "The request is too large.": "请求过大。",
    "Open the address that the agent printed; it works once.": (
        "请打开代理打印的地址，它只能使用一次。"
    ),
    # What a driver lacks, and installing it.
    "The {driver} driver needs Python packages that are not here: {names}.": (
        "{driver} 驱动需要的 Python 软件包尚未安装：{names}。"
    ),
    "This machine shows no X display and has no X server; Xvfb is one without a screen.": (
        "本机没有 X 显示，也没有 X 服务器；Xvfb 是不需要屏幕的 X 服务器。"
    ),
    "Other machines reach this agent, so its page installs nothing. Type the command in a "
    "terminal, or start the agent with --allow-install.": (
        "其他机器可以访问此代理，因此页面不安装任何东西。请在终端中输入命令，"
        "或用 --allow-install 启动代理。"
    ),
    "The installation was stopped.": "安装已停止。",
    "The installation failed (exit status {code}).": "安装失败（退出状态 {code}）。",
    "It was installed, but this agent does not find it; start the agent again.": (
        "已安装，但此代理找不到它；请重新启动代理。"
    ),
    "Something is being installed; wait for its end, or cancel it.": (
        "正在安装；请等待完成或取消。"
    ),
    "The {driver} driver lacks nothing.": "{driver} 驱动不缺少任何东西。",
    "A task is going on; install it when it is over.": "任务正在进行，结束后才能安装。",
    # The model's server.
    "The models cannot be listed: {error}": "无法列出模型：{error}",
    "The model gave no reply: {error}.": "模型没有答复：{error}",
    "{error} (tried {tries} times)": "{error}（已尝试 {tries} 次）",
    "nothing answers at {place}; is the server running?": "{place} 没有响应；服务器在运行吗？",
    "The name {host} is not known (DNS); is the base URL right?": (
        "无法解析主机名 {host}（DNS）；接口地址正确吗？"
    ),
    "{place} {had} (401): {said}": "{place} {had} (401)：{said}",
    "wants an API key": "需要 API 密钥",
    "refused the API key": "拒绝了 API 密钥",
    "{place} refused the request ({status}): {said}": "{place} 拒绝了请求 ({status})：{said}",
    "{place} has no model {model}; it has: {names}.": "{place} 没有模型 {model}；它有：{names}。",
    # Settings.
    "These settings do not fit: {error}.": "设置有误：{error}。",
    "{name} must be at least 1": "{name} 至少为 1",
    "system_prompt must have {placeholder} once, where the model is told how to write its "
    "actions; it has it {count} times": (
        "system_prompt 必须恰好包含一次 {placeholder}，模型在那里得知如何书写操作；"
        "现在包含 {count} 次"
    ),
    "system_prompt has {found}, which nothing fills; known: {known}": (
        "system_prompt 中的 {found} 没有对应的内容；已知：{known}"
    ),
    "A cap on the cost needs the prices of a million tokens.": (
        "设置费用上限需要填写每百万 token 的价格。"
    ),
    "The cap on {name} is {cap}; it must be more than 0.": "{name}上限为 {cap}，必须大于 0。",
    "The model's base URL {url} must begin with http:// or https://.": (
        "接口地址 {url} 必须以 http:// 或 https:// 开头。"
    ),
    "The driver's URL names no host; write it like {scheme}://192.168.1.7.": (
        "电脑地址缺少主机；请写成 {scheme}://192.168.1.7 的形式。"
    ),
    "Another agent operates {target} already (pid {owner}). End it first.": (
        "另一个代理（进程 {owner}）正在操作 {target}，请先结束它。"
    ),
}


WORDS_FILE = Path(__file__).with_name("words.zh.json")


def in_chinese(text: str) -> str:
    """The sentence in Chinese, with those that it quotes; as it is where it is none of ours."""
    return _forms().translated(text)


@cache
def _forms() -> Forms:
    return Forms(json.loads(WORDS_FILE.read_text(encoding="utf-8")) | SENTENCES)
